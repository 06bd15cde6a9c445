"""Where a command finds its cluster: flags, the environment, and named contexts.

A context is a cluster with a name: its addresses, and how to speak to it. Contexts stand in one TOML file,
`~/.config/emberq/contexts.toml` unless EMBERQ_CONTEXTS names another. Its keys are the flags:

    default = "staging"

    [contexts.staging]
    nsqd_tcp_address = "10.0.0.5:4150"
    nsqd_http_address = "10.0.0.5:4151"

    [contexts.production]
    lookupd_http_address = ["https://lookup1:4161", "https://lookup2:4161"]
    nsqd_tcp_address = ["nsqd1:4150", "nsqd2:4150"]
    tls_root_ca_file = "/etc/nsq/ca.pem"
    auth_secret_file = "/run/secrets/nsq"

Each of these is also a variable, such as EMBERQ_NSQD_TCP_ADDRESS or EMBERQ_TLS=1; several addresses have commas between
them. EMBERQ_AUTH_SECRET and EMBERQ_LOOKUPD_SECRET hold the secrets themselves. What counts, in this order:

    1. the flags
    2. the context that --context names
    3. the environment
    4. the context that EMBERQ_CONTEXT or `default` names

All addresses come from the first of these that has any, so that they belong to one cluster. The fourth is left alone if
the addresses come from elsewhere: its secrets are for its own nsqds.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from emberq.base.address import AddressError, parse_address
from emberq.base.flag import nearest
from emberq.base.settings import LOOKUPD_SECRET_VARIABLE, SECRET_VARIABLE
from emberq.base.text import quoted
from emberq.cli.main import Subcommand, run_subcommand
from emberq.cli.table import name, table, text
from emberq.cli.terminal import DONE, CommandParser, Terminal, UsageError, command_parser, run_command

FILE_VARIABLE = "EMBERQ_CONTEXTS"
NAME_VARIABLE = "EMBERQ_CONTEXT"
PREFIX = "EMBERQ_"

ADDRESSES = ("nsqd_tcp_address", "nsqd_http_address", "lookupd_http_address")
SWITCHES = ("tls", "tls_insecure")
FILES = ("tls_root_ca_file", "tls_cert", "tls_key", "auth_secret_file", "lookupd_secret_file")
KEYS = (*ADDRESSES, *SWITCHES, *FILES)

SECRETS = {
    "auth_secret_file": ("EMBERQ_AUTH_SECRET", SECRET_VARIABLE),
    "lookupd_secret_file": ("EMBERQ_LOOKUPD_SECRET", LOOKUPD_SECRET_VARIABLE),
}
"""The variables that may hold the secret itself. The first one that is set counts."""

Values = Mapping[str, Any]
"""By key: a list of addresses, True for a switch, a Path for a file."""


class Contexts(NamedTuple):
    """What the file of contexts holds."""

    path: Path
    default: str
    by_name: Mapping[str, Values]

    def named(self, name: str) -> Values:
        """One of them; UsageError."""
        if name in self.by_name:
            return self.by_name[name]
        meant = nearest(name, self.by_name)
        suggestion = f"Did you mean {meant}? " if meant else ""
        hint = f"{suggestion}They stand in {self.path}; `emberq context list` shows them."
        raise UsageError(f"there is no context {quoted(name)}", hint=hint)


# The file.


def contexts_path(environment: Mapping[str, str]) -> Path:
    """Where the contexts stand."""
    if environment.get(FILE_VARIABLE):
        return Path(environment[FILE_VARIABLE])
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config"
    return Path(base) / "emberq" / "contexts.toml"


def read_contexts(environment: Mapping[str, str]) -> Contexts:
    """All contexts; none if there is no file. UsageError if it cannot be used."""
    path = contexts_path(environment)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as wrong:
        raise UsageError(f"{path}: {wrong}") from wrong
    tables, default = document.pop("contexts", {}), document.pop("default", "")
    if document:
        raise UsageError(f"{path}: {next(iter(document))} is neither `default` nor `contexts`")
    if not isinstance(default, str) or not isinstance(tables, dict):
        raise UsageError(f"{path}: `default` is a name, and `contexts` are tables")
    return Contexts(path, default, {name: _values(values, f"{path}: {name}") for name, values in tables.items()})


def _values(values: Any, place: str) -> Values:
    if not isinstance(values, dict):
        raise UsageError(f"{place} is not a table")
    for key in values:
        if key not in KEYS:
            meant = nearest(key, KEYS)
            raise UsageError(f"{place}: {key} is no key", hint=f"Did you mean {meant}?" if meant else "")
    return {key: _value(key, value, place) for key, value in values.items()}


def _value(key: str, value: Any, place: str) -> Any:
    if key in SWITCHES and isinstance(value, bool):
        return value
    if key in FILES and isinstance(value, str):
        return Path(value).expanduser()
    if key in ADDRESSES and isinstance(value, str):
        return [value]
    if key in ADDRESSES and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    wanted = "true or false" if key in SWITCHES else "a path" if key in FILES else "an address, or a list of them"
    raise UsageError(f"{place}: {key} must be {wanted}")


# The environment.

_SWITCHED = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


def variable(key: str) -> str:
    """The variable for a key."""
    return PREFIX + key.upper()


def environment_values(environment: Mapping[str, str]) -> Values:
    """What the environment says; UsageError. A secret that is in it counts as said."""
    found: dict[str, Any] = {}
    for key in KEYS:
        given = environment.get(variable(key), "")
        if given and key in SWITCHES:
            if given.lower() not in _SWITCHED:
                raise UsageError(f"{variable(key)} must be 1 or 0")
            found[key] = _SWITCHED[given.lower()]
        elif given:
            found[key] = [each.strip() for each in given.split(",")] if key in ADDRESSES else Path(given)
        elif any(environment.get(secret) for secret in SECRETS.get(key, ())):
            found[key] = None
    return found


def secret_variable(key: str, environment: Mapping[str, str]) -> str:
    """The variable that holds the secret, or would."""
    own, of_nsq = SECRETS[key]
    return own if environment.get(own) else of_nsq


# What counts.

COMMAND_LINE = "the command line"


def add_context_flag(parser: CommandParser) -> None:
    """Have the flags of addresses, TLS and secrets filled from the environment and the contexts."""
    if any("--context" in action.option_strings for action in parser.flags):
        return
    parser.add_argument(
        "--context",
        metavar="NAME",
        help=f"the cluster of this name in {FILE_VARIABLE} or ~/.config/emberq/contexts.toml; else {NAME_VARIABLE}",
    )
    parser.after_reading.append(fill)


def fill(arguments: argparse.Namespace) -> None:
    """Set what the flags leave open. UsageError if a context or a variable cannot be used."""
    environment = os.environ
    wanted = [key for key in KEYS if hasattr(arguments, key)]
    sources = {COMMAND_LINE: _given(arguments, wanted)}
    contexts = read_contexts(environment)
    if arguments.context:
        sources[f"the context {arguments.context}"] = contexts.named(arguments.context)
    sources["the environment"] = environment_values(environment)
    implied = environment.get(NAME_VARIABLE) or contexts.default
    if implied and not arguments.context and not any(map(_has_address, sources.values())):
        sources[f"the context {implied}"] = contexts.named(implied)
    place, chosen = next(((place, source) for place, source in sources.items() if _has_address(source)), ("", {}))
    _check_kinds(chosen, wanted, place)
    _check_addresses(chosen, place)
    arguments.address_place = place
    for key in wanted:
        considered = [chosen] if key in ADDRESSES else sources.values()
        value = next((source[key] for source in considered if key in source), None)
        if value is not None:
            setattr(arguments, key, value)


def _given(arguments: argparse.Namespace, wanted: Sequence[str]) -> Values:
    return {key: getattr(arguments, key) for key in wanted if getattr(arguments, key)}


def _has_address(source: Values) -> bool:
    return any(source.get(key) for key in ADDRESSES)


def _check_kinds(chosen: Values, wanted: Sequence[str], place: str) -> None:
    """UsageError if the cluster is known only by addresses of which the command makes no use.

    It would go to the nsqd of this machine instead.
    """
    usable = [key for key in ADDRESSES if key in wanted]
    if chosen and not any(chosen.get(key) for key in usable):
        flags = " or ".join(f"--{key.replace('_', '-')}" for key in usable)
        raise UsageError(f"{place} has no address that this command can use", hint=f"It needs {flags}.")


def _check_addresses(chosen: Values, place: str) -> None:
    """UsageError if an nsqd's address cannot be one. Those of flags were checked when they were read."""
    for key in ("nsqd_tcp_address", "nsqd_http_address"):
        for address in chosen.get(key, ()):
            try:
                parse_address(address)
            except AddressError as wrong:
                raise UsageError(f"{key} in {place}: {wrong}") from wrong


# `emberq context`.

_HERE = "emberq.cli.context:"
SUBCOMMANDS = (
    Subcommand("list", _HERE + "list_contexts", "the names of all contexts", _HERE + "list_parser"),
    Subcommand("show", _HERE + "show_context", "what a context says", _HERE + "show_parser"),
)
REMARK = "A context is a cluster with a name. They stand in a file: see docs/reference/emberq.md.\n"


def main(argv: Sequence[str]) -> int:
    """Run the subcommand that `argv` names; the exit status."""
    return run_subcommand("emberq context", SUBCOMMANDS, argv, remark=REMARK)


def list_parser() -> CommandParser:
    """Those of `list`."""
    return command_parser("emberq context list", "List the contexts; the one that counts without --context has a *.")


def show_parser() -> CommandParser:
    """Those of `show`."""
    parser = command_parser("emberq context show", "Show the addresses and files of a context.")
    parser.add_argument("name", metavar="NAME")
    return parser


def list_contexts(argv: Sequence[str]) -> int:
    """List them; the exit status."""
    return run_command(list_parser(), argv, _list)


def show_context(argv: Sequence[str]) -> int:
    """Show one; the exit status."""
    return run_command(show_parser(), argv, _show)


async def _list(_arguments: argparse.Namespace, terminal: Terminal) -> int:
    contexts = read_contexts(os.environ)
    current = os.environ.get(NAME_VARIABLE) or contexts.default
    rows = [("*" if each == current else "", each, _summary(values)) for each, values in contexts.by_name.items()]
    if terminal.as_json:
        for each, values in contexts.by_name.items():
            terminal.write_json({"context": each, "is_current": each == current, **_document(values)})
    elif terminal.is_rich:
        columns = [name(""), name("CONTEXT"), text("ADDRESSES")]
        terminal.console.print(table(columns, rows, width=terminal.console.width))
    else:
        for mark, each, addresses in rows:
            terminal.write(f"{mark or ' '} {each} {addresses}")
    if not rows:
        terminal.note(f"there are none in {contexts.path}")
    return DONE


async def _show(arguments: argparse.Namespace, terminal: Terminal) -> int:
    values = read_contexts(os.environ).named(arguments.name)
    if terminal.as_json:
        terminal.write_json({"context": arguments.name, **_document(values)})
    else:
        for key, value in _document(values).items():
            for each in value if isinstance(value, list) else [value]:
                terminal.write(f"--{key.replace('_', '-')}" if each is True else f"--{key.replace('_', '-')}={each}")
    return DONE


def _summary(values: Values) -> str:
    return ", ".join(address for key in ADDRESSES for address in values.get(key, ()))


def _document(values: Values) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
