"""The flags that make consumers and producers, and running the consumers of a tool.

**Options of the client library**, `--consumer-opt` and `--producer-opt`, have the names that NSQ's Go client gave them:

    --consumer-opt=max_attempts,10 --consumer-opt=tls-v1 --consumer-opt=backoff_multiplier,500ms

Each is `name,value`, or `name` alone for `true`; `-` and `_` are the same in a name. They are checked while the command
line is read, so a mistake is a mistake on the command line. Of several for one name the last counts.

All names of the Go client are known. Some of them stand for what our client does in another way:

    dial_timeout             bounds all of connecting, TLS and AUTH included
    read_timeout             bounds the wait for an answer; silence is judged by the heartbeat interval
    lookupd_poll_interval    also bounds the pause before a lost nsqd is tried again
    write_timeout, local_addr, tls_config    are accepted, and have no effect (the log says so)

A tool's `--max-in-flight` and its user agent win over these options.

**The secret** for AUTH stands in a file (`--auth-secret-file`) or in the environment (NSQ_AUTH_SECRET). The option
`auth_secret` of the Go client still works, but every user of the machine can read it in the list of processes. No log
line and no error shows its value.

**The secret for nsqlookupds** stands in a file (`--lookupd-secret-file`) or in the environment (NSQ_LOOKUPD_SECRET).
Without one they are shown the secret for AUTH, as by the Go client.

**The source** of a tool's messages is either nsqds or nsqlookupds that know them, never both. An nsqd that was named
and cannot be reached at the start ends the tool: most likely its address was mistyped. The consumer handles those that
come and go later. A message that failed five times is given up, as by NSQ's own tools;
`--consumer-opt=max_attempts,0` never gives up.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emberq import NSQ_VERSION, __version__
from emberq.base.address import parse_tcp_address
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.base.flag import BOOLEAN, DURATION, FLOAT, INTEGER, Text, ValueKind, Words
from emberq.base.program import ToolError
from emberq.base.settings import LOOKUPD_SECRET_VARIABLE, SECRET_VARIABLE, Group, OptionsError, read_secret
from emberq.base.text import format_duration, parse_duration
from emberq.base.tls import TlsFileError, client_context
from emberq.client.address import nsqd_address
from emberq.client.backoff import BackoffStrategy
from emberq.client.config import OFF, ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.wire.parameter import is_valid_name

# Options of the client library.

UNLIMITED_S = 86_400.0
"""Stands for a timeout of zero, which means none: no run of a tool waits longer than a day."""

DEFAULT_HEARTBEAT_INTERVAL_NS = 30 * NS_PER_SECOND
DEFAULT_READ_TIMEOUT_NS = 60 * NS_PER_SECOND

logger = logging.getLogger(__name__)


class _LocalAddress(Text):
    """An address to connect from."""

    def from_text(self, text: str) -> str:
        return str(parse_tcp_address(text))


class _RootFile(Text):
    """A file of certificates to trust, tried at once."""

    def from_text(self, text: str) -> str:
        try:
            ssl.create_default_context(cafile=text)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"failed to read custom Certificate Authority file {text} - {error}") from error
        return text


SECRET_OPTION = "auth_secret"  # noqa: S105 - the name of one
MASK = "***"

TEXT = Text()
BACKOFF_STRATEGY = Words("strategy", {strategy.value: strategy for strategy in BackoffStrategy})
TLS_VERSION = Words(
    "version",
    {
        "ssl3.0": ssl.TLSVersion.TLSv1,  # SSL 3.0 is not supported; the oldest version that is
        "tls1.0": ssl.TLSVersion.TLSv1,
        "tls1.1": ssl.TLSVersion.TLSv1_1,
        "tls1.2": ssl.TLSVersion.TLSv1_2,
    },
    refusal="{} is not a tls version",
)


def _unchanged(value: Any) -> Any:
    return value


def _in_seconds(duration_ns: int) -> float:
    return duration_ns / NS_PER_SECOND


def _timeout_in_seconds(duration_ns: int) -> float:
    return _in_seconds(duration_ns) if duration_ns > 0 else UNLIMITED_S


def _in_ms(duration_ns: int) -> int:
    return OFF if duration_ns < 0 else duration_ns // NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """How one option is read, and which field of which config it sets."""

    kind: ValueKind[Any]
    at_least: Any = None
    at_most: Any = None
    client: str = ""
    consumer: str = ""
    convert: Callable[[Any], Any] = _unchanged
    has_effect: bool = True


def _seconds(at_least: str, at_most: str, *, client: str = "", consumer: str = "") -> _Rule:
    """A duration that a config has in seconds; one that is for no config is accepted, and has no effect."""
    return _Rule(
        kind=DURATION,
        at_least=parse_duration(at_least),
        at_most=parse_duration(at_most),
        client=client,
        consumer=consumer,
        convert=_in_seconds,
        has_effect=bool(client or consumer),
    )


_RULES: Mapping[str, _Rule] = {
    "dial_timeout": _Rule(kind=DURATION, client="connect_timeout_s", convert=_timeout_in_seconds),
    "read_timeout": _seconds("100ms", "5m", client="request_timeout_s"),
    "write_timeout": _seconds("100ms", "5m"),
    "local_addr": _Rule(kind=_LocalAddress(), has_effect=False),
    "lookupd_poll_interval": _seconds("10ms", "5m", consumer="lookupd_poll_interval_s"),
    "lookupd_poll_jitter": _Rule(kind=FLOAT, at_least=0, at_most=1, consumer="lookupd_poll_jitter"),
    "lookupd_poll_timeout": _Rule(kind=DURATION, consumer="lookupd_timeout_s", convert=_timeout_in_seconds),
    "max_requeue_delay": _seconds("0", "60m", consumer="max_requeue_delay_s"),
    "default_requeue_delay": _seconds("0", "60m", consumer="default_requeue_delay_s"),
    "backoff_strategy": _Rule(kind=BACKOFF_STRATEGY, consumer="backoff_strategy"),
    "max_backoff_duration": _seconds("0", "60m", consumer="max_backoff_s"),
    "backoff_multiplier": _seconds("0", "60m", consumer="backoff_unit_s"),
    "max_attempts": _Rule(kind=INTEGER, at_least=0, at_most=65_535, consumer="max_attempts"),
    "low_rdy_idle_timeout": _seconds("1s", "5m", consumer="low_rdy_idle_timeout_s"),
    "low_rdy_timeout": _seconds("1s", "5m", consumer="low_rdy_timeout_s"),
    "rdy_redistribute_interval": _seconds("1ms", "5s", consumer="rdy_redistribute_interval_s"),
    "client_id": _Rule(kind=TEXT, client="client_id"),
    "hostname": _Rule(kind=TEXT, client="hostname"),
    "user_agent": _Rule(kind=TEXT, client="user_agent"),
    "heartbeat_interval": _Rule(kind=DURATION, client="heartbeat_interval_ms", convert=_in_ms),
    "sample_rate": _Rule(kind=INTEGER, at_least=0, at_most=99, client="sample_rate"),
    "tls_v1": _Rule(kind=BOOLEAN),
    "tls_config": _Rule(kind=TEXT, has_effect=False),
    "tls_root_ca_file": _Rule(kind=_RootFile()),
    "tls_cert": _Rule(kind=TEXT),
    "tls_key": _Rule(kind=TEXT),
    "tls_insecure_skip_verify": _Rule(kind=BOOLEAN),
    "tls_min_version": _Rule(kind=TLS_VERSION),
    "deflate": _Rule(kind=BOOLEAN, client="deflate"),
    "deflate_level": _Rule(kind=INTEGER, at_least=1, at_most=9, client="deflate_level"),
    "snappy": _Rule(kind=BOOLEAN, client="snappy"),
    "output_buffer_size": _Rule(kind=INTEGER, client="output_buffer_size"),
    "output_buffer_timeout": _Rule(kind=DURATION, client="output_buffer_timeout_ms", convert=_in_ms),
    "max_in_flight": _Rule(kind=INTEGER, at_least=0, consumer="max_in_flight"),
    "msg_timeout": _Rule(kind=DURATION, at_least=0, client="msg_timeout_ms", convert=_in_ms),
    "max_msg_size": _Rule(kind=INTEGER, at_least=0),
    SECRET_OPTION: _Rule(kind=TEXT, client="auth_secret", convert=str.encode),
    "skip_lookupd_authorization": _Rule(kind=BOOLEAN, consumer="authorize_lookupd"),  # true sends the secret there
    "topology_region": _Rule(kind=TEXT, client="topology_region"),
    "topology_zone": _Rule(kind=TEXT, client="topology_zone"),
}
"""Every option of NSQ's Go client."""


@dataclass(frozen=True, slots=True)
class ClientOption:
    """One option, read and checked: durations are nanoseconds."""

    name: str
    value: Any = field(repr=False)  # it may be the secret


def parse_client_option(text: str) -> ClientOption:
    """Parse an option. ValueError with the reason if it is none."""
    key, comma, value_text = text.partition(",")
    name = key.replace("-", "_")
    rule = _RULES.get(name)
    if rule is None:
        raise ValueError(f"invalid option {key}")
    try:
        value = rule.kind.from_text(value_text if comma else "true")
    except ValueError as error:
        raise ValueError(f"failed to coerce option {key} ({value_text if comma else 'true'}) - {error}") from error
    show = rule.kind.to_text
    if rule.at_least is not None and value < rule.at_least:
        raise ValueError(f"invalid {name} ! {show(value)} < {show(rule.at_least)}")
    if rule.at_most is not None and value > rule.at_most:
        raise ValueError(f"invalid {name} ! {show(value)} > {show(rule.at_most)}")
    return ClientOption(name, value)


class ClientOptions(ValueKind[tuple[ClientOption, ...]]):
    """The kind of the two flags. With `ignores_mistakes` an invalid option is silently dropped."""

    placeholder = "name,value"
    noun = "an option of the client"
    repeatable = True

    def __init__(self, *, ignores_mistakes: bool = False) -> None:
        self._ignores_mistakes = ignores_mistakes

    def from_text(self, text: str) -> tuple[ClientOption, ...]:
        try:
            return (parse_client_option(text),)
        except ValueError:
            if self._ignores_mistakes:
                return ()
            raise

    def without_secret(self, text: str) -> str:
        """The name alone, if it looks like that of a secret: a misspelled one is shown, too."""
        name, comma, _ = text.partition(",")
        return f"{name},{MASK}" if comma and _SECRET_NAME.search(name) else text

    def to_text(self, value: tuple[ClientOption, ...]) -> str:
        return " ".join(f"{option.name},{_shown(option)}" for option in value)


_SECRET_NAME = re.compile("auth|secret|pass|token", re.IGNORECASE)


def _shown(option: ClientOption) -> str:
    return MASK if option.name == SECRET_OPTION else _RULES[option.name].kind.to_text(option.value)


# Configs.


def user_agent(tool: str) -> str:
    """The user agent of a tool, which nsqd and nsqadmin show."""
    return f"{tool}/{NSQ_VERSION} emberq/{__version__}"


def client_config(options: Iterable[ClientOption], *, tool: str, secret_file: str = "") -> ClientConfig:
    """How the connections of `tool` are made. OptionsError if options contradict each other, SettingError for a file.

    The secret is that of the options, or in the file, or in the environment.
    """
    values = _latest(options)
    _check_heartbeat(values)
    fields = _fields(values, lambda rule: rule.client)
    if SECRET_OPTION not in values:
        fields["auth_secret"] = read_secret(secret_file)
    elif secret_file:
        raise OptionsError("use --auth-secret-file or the option auth_secret, not both")
    if values.get("max_msg_size"):
        fields["max_frame_bytes"] = values["max_msg_size"]
    if values.get("tls_v1"):
        fields["tls"] = _tls_context(values)
    fields["user_agent"] = user_agent(tool)
    for name in values:
        if not _RULES[name].has_effect:
            logger.warning("option %s has no effect here", name)
    try:
        return ClientConfig(**fields)
    except ValueError as error:
        raise OptionsError(str(error)) from error


def consumer_config(
    options: Iterable[ClientOption], *, max_in_flight: int, lookupd_secret_file: str = ""
) -> ConsumerConfig:
    """How the consumers of a tool behave. OptionsError for impossible values, SettingError for a file."""
    values = _latest(options)
    fields = _fields(values, lambda rule: rule.consumer)
    if "lookupd_poll_interval" in values:
        fields["max_reconnect_delay_s"] = fields["lookupd_poll_interval_s"]
    fields["max_in_flight"] = max_in_flight
    fields["lookupd_secret"] = read_lookupd_secret(lookupd_secret_file)
    try:
        return ConsumerConfig(**fields)
    except ValueError as error:
        raise OptionsError(str(error)) from error


def read_lookupd_secret(path: str) -> bytes:
    """The secret for nsqlookupds: in the file, or in the environment; empty if it is in neither. SettingError."""
    return read_secret(path, flag="lookupd-secret-file", variable=LOOKUPD_SECRET_VARIABLE)


def _latest(options: Iterable[ClientOption]) -> dict[str, Any]:
    return {option.name: option.value for option in options}


def _fields(values: Mapping[str, Any], field_of: Callable[[_Rule], str]) -> dict[str, Any]:
    """The values for the fields of one config."""
    rules = ((_RULES[name], value) for name, value in values.items())
    return {field_of(rule): rule.convert(value) for rule, value in rules if field_of(rule)}


def _check_heartbeat(values: Mapping[str, Any]) -> None:
    heartbeat_ns = values.get("heartbeat_interval", DEFAULT_HEARTBEAT_INTERVAL_NS)
    read_timeout_ns = values.get("read_timeout", DEFAULT_READ_TIMEOUT_NS)
    if heartbeat_ns > read_timeout_ns:
        raise OptionsError(
            f"HeartbeatInterval {format_duration(heartbeat_ns)} must be less than"
            f" ReadTimeout {format_duration(read_timeout_ns)}"
        )


def _tls_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    certificate, key = values.get("tls_cert"), values.get("tls_key")
    if bool(certificate) != bool(key):
        raise OptionsError("tls_cert and tls_key are given together or not at all")
    root = values.get("tls_root_ca_file")
    try:
        return client_context(
            ca_file=root,
            cert_file=certificate,
            key_file=key,
            verify=not values.get("tls_insecure_skip_verify"),
            minimum=values.get("tls_min_version"),
        )
    except TlsFileError as error:
        files = root if error.is_authority else f"{certificate}, {key}"
        raise OptionsError(f"failed to load {files} - {error}") from error


# The source.

FAILED_DRAIN_S = 0.5
"""Enough to tell nsqd that the consumer leaves, and to give back what it sent meanwhile. Messages that a failed pump
holds are delivered again after their timeout."""

SOURCE = Group("Source")
SECRET_FILE_MEANING = f"file with the secret for AUTH; without it, that in the environment variable {SECRET_VARIABLE}"
LOOKUPD_SECRET_FILE_MEANING = (
    "file with the secret for nsqlookupds that run with --http-secret-file; without it, that in the environment"
    f" variable {LOOKUPD_SECRET_VARIABLE}, or that for AUTH"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The flags of every tool that consumes."""

    nsqd_tcp_address: tuple[str, ...] = SOURCE.strings("nsqd to consume from", placeholder="address")
    lookupd_http_address: tuple[str, ...] = SOURCE.strings("nsqlookupd to ask for nsqds", placeholder="address")
    max_in_flight: int = SOURCE.integer(200, "how many messages may be with this program, unanswered")
    consumer_opt: tuple[ClientOption, ...] = SOURCE.declare(
        ClientOptions(), (), "option of the client library, such as max_attempts,10"
    )
    auth_secret_file: str = SOURCE.text("", SECRET_FILE_MEANING, placeholder="file")
    lookupd_secret_file: str = SOURCE.text("", LOOKUPD_SECRET_FILE_MEANING, placeholder="file")


def check_addresses(options: SourceOptions) -> None:
    """OptionsError unless exactly one kind of address is given."""
    if not options.nsqd_tcp_address and not options.lookupd_http_address:
        raise OptionsError("--nsqd-tcp-address or --lookupd-http-address required")
    if options.nsqd_tcp_address and options.lookupd_http_address:
        raise OptionsError("use --nsqd-tcp-address or --lookupd-http-address not both")


def make_consumer(options: SourceOptions, *, topic: str, channel: str, tool: str) -> Consumer:
    """A consumer of one topic, not started. OptionsError if the options cannot work."""
    if not is_valid_name(topic):
        raise OptionsError("invalid topic name")
    if not is_valid_name(channel):
        raise OptionsError("invalid channel name")
    try:
        return Consumer(
            topic,
            channel,
            nsqd_addresses=options.nsqd_tcp_address,
            lookupd_addresses=options.lookupd_http_address,
            config=consumer_config(
                options.consumer_opt,
                max_in_flight=options.max_in_flight,
                lookupd_secret_file=options.lookupd_secret_file,
            ),
            client_config=client_config(options.consumer_opt, tool=tool, secret_file=options.auth_secret_file),
        )
    except ValueError as error:  # an address of an nsqlookupd
        raise OptionsError(str(error)) from error


async def consume(
    consumers: Mapping[str, Consumer],
    pump: Callable[[str, Consumer], Awaitable[None]],
    *,
    nsqd_addresses: Sequence[str],
    stop_asked: asyncio.Event,
) -> None:
    """Run `pump(topic, consumer)` for every topic until the stop is asked for, or one returns or raises. Then end all.

    ToolError if an nsqd that was named cannot be reached; the log says why. The consumers are stopped in good order:
    they take no more messages, and wait for those that a pump holds, but not for long when a pump has failed.
    """

    async def work(topic: str, consumer: Consumer) -> None:
        await consumer.start()
        named = {nsqd_address(address.strip()) for address in nsqd_addresses}
        unreachable = named - set(consumer.statistics().addresses)
        if not unreachable:
            await pump(topic, consumer)
            return
        await consumer.stop(drain_timeout_s=0)
        if not stop_asked.is_set():  # stopped before it was connected, which is no failure
            raise ToolError(f"cannot connect to nsqd {', '.join(sorted(unreachable))}")

    pumps = [asyncio.create_task(work(topic, consumer)) for topic, consumer in consumers.items()]
    stop = asyncio.create_task(stop_asked.wait())
    try:
        await asyncio.wait([stop, *pumps], return_when=asyncio.FIRST_COMPLETED)
        has_failed = any(each.done() and each.exception() is not None for each in pumps)
        drain_timeout_s = FAILED_DRAIN_S if has_failed else None
        await asyncio.gather(*(consumer.stop(drain_timeout_s=drain_timeout_s) for consumer in consumers.values()))
    finally:
        for task in (stop, *pumps):
            task.cancel()
        outcomes = await asyncio.gather(*pumps, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
