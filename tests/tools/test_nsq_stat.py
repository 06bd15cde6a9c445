"""nsq_stat's reports and options; the command itself is tested in tests/cli."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.base.program import ToolError
from emberq.base.settings import OptionsError
from emberq.cluster.node_stats import StatsReader
from emberq.cluster.stats import ChannelFigures, total_channel
from emberq.embedded import EmbeddedThread
from emberq.tools.nsq_stat import HEADER, HEADER_INTERVAL, StatOptions, row, run
from tests.support.certificates import Authority
from tests.support.cluster_rig import DEAD, NODE, channel_entry, topic_entry
from tests.support.embedded import create, publish
from tests.support.scripted_server import ScriptedServer

pytestmark = pytest.mark.loop("uvloop")

ASKED: dict[str, Any] = {"topic": "t", "channel": "c", "nsqd_http_address": ("127.0.0.1:4151",)}


def look(**figures: int) -> ChannelFigures:
    (topic,) = StatsReader(NODE).topics({"topics": [topic_entry("t", channel_entry("c", **figures))]})
    return total_channel(topic.channels)


async def report(nsq: EmbeddedThread, **options: Any) -> None:
    """Run the tool on these nsqds to its end."""
    given = {**ASKED, "nsqd_http_address": tuple(nsq.nsqd_http_addresses), "interval_ns": NS_PER_MS, "count": 1}
    await run(StatOptions(**(given | options)), asyncio.Event())


def test_a_row_stands_under_its_header() -> None:
    before = look(message_count=10, depth=4)
    now = look(
        message_count=34,
        depth=8,
        backend_depth=3,
        in_flight_count=2,
        deferred_count=1,
        requeue_count=6,
        timeout_count=7,
        client_count=9,
    )
    assert [HEADER.splitlines()[1], row(before, now, interval_ns=2 * NS_PER_SECOND)] == [
        "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients",
        "     12      10 |       8       5       3     2     1 |       6       7           34       9",
    ]


@pytest.mark.parametrize(("interval_ms", "rates"), [(3_000, ["3", "-3"]), (500, ["20", "-20"])])
def test_rates_are_cut_to_whole_numbers_towards_zero(interval_ms: int, rates: list[str]) -> None:
    grown = row(look(), look(message_count=10, depth=20), interval_ns=interval_ms * NS_PER_MS)
    assert grown.split("|")[0].split() == rates


async def test_daemons_are_asked_by_https(authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    own = authority.issue("own")
    wants_certificates = {
        **authority.issue("nsqd").options(),
        "tls_root_ca_file": str(authority.path),
        "tls_client_auth_policy": "require-verify",
    }
    with EmbeddedThread(with_lookupd=False, **wants_certificates) as nsq:
        nsq.call(lambda: nsq.nsq.nsqds[0].broker.topic("t").channel("c"))
        address = nsq.nsq.nsqds[0].https_address
        assert isinstance(address, tuple)
        files: dict[str, Any] = {
            "http_client_tls_root_ca_file": str(authority.path),
            "http_client_tls_cert": str(own.certificate_path),
            "http_client_tls_key": str(own.key_path),
        }
        await report(nsq, nsqd_http_address=(f"https://127.0.0.1:{address[1]}",), **files)
    assert len(capsys.readouterr().out.splitlines()) == 3
    with pytest.raises(OptionsError, match="--http-client-tls-root-ca-file, -cert, -key: "):
        await run(StatOptions(**ASKED, http_client_tls_root_ca_file="/nowhere"), asyncio.Event())


@pytest.mark.nsq(nsqd_count=2)
async def test_figures_are_those_of_the_whole_cluster(nsq: EmbeddedThread, capsys: pytest.CaptureFixture[str]) -> None:
    for node in (0, 1):
        create(nsq, "t", "c", node=node)
        publish(nsq, "t", b"x", b"y", node=node)
    expected = [
        *HEADER.splitlines(),
        "      0       0 |       4       4       0     0     0 |       0       0            4       0",
    ]
    await report(nsq)
    assert capsys.readouterr().out.splitlines() == expected
    await report(nsq, nsqd_http_address=(), lookupd_http_address=tuple(nsq.lookupd_http_addresses))
    assert capsys.readouterr().out.splitlines() == expected


async def test_the_header_is_repeated_for_those_who_scroll(
    nsq: EmbeddedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    create(nsq, "t", "c")
    await report(nsq, count=HEADER_INTERVAL + 1)
    lines = capsys.readouterr().out.splitlines()
    headings = [number for number, line in enumerate(lines) if line.startswith("---")]
    assert headings == [0, 2 + HEADER_INTERVAL - 1]
    assert len(lines) == 2 * 2 + HEADER_INTERVAL + 1


async def test_a_stop_ends_it_even_while_nobody_answers() -> None:
    with ScriptedServer() as silent:
        stop = asyncio.Event()
        options = StatOptions(**(ASKED | {"nsqd_http_address": (f"127.0.0.1:{silent.port}",)}))
        running = asyncio.ensure_future(run(options, stop))
        await asyncio.sleep(0)
        stop.set()
        await running


async def test_a_topic_that_nsqlookupd_does_not_know_is_an_error(nsq: EmbeddedThread) -> None:
    with pytest.raises(ToolError, match=r"^ERROR: failed to get topic producers - failed to query any nsqlookupd: got"):
        await report(nsq, nsqd_http_address=(), lookupd_http_address=tuple(nsq.lookupd_http_addresses))


async def test_a_topic_that_no_nsqd_has_is_an_error(nsq: EmbeddedThread) -> None:
    with pytest.raises(ToolError, match=r"^ERROR: failed to get nsqd stats - failed to query any nsqd: $"):
        await report(nsq)


async def test_a_channel_that_no_nsqd_has_is_an_error(nsq: EmbeddedThread, capsys: pytest.CaptureFixture[str]) -> None:
    create(nsq, "t", "other")
    with pytest.raises(ToolError) as raised:
        await report(nsq)
    assert str(raised.value) == "ERROR: failed to find channel(c) in stats metadata for topic(t)"
    assert capsys.readouterr().out == ""


async def test_figures_of_a_part_of_the_cluster_are_not_shown(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c")
    with pytest.raises(ToolError, match=r"^ERROR: failed to get topic producers - Get .*: cannot connect"):
        await report(nsq, nsqd_http_address=(*nsq.nsqd_http_addresses, DEAD))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"topic": ""}, "--topic and --channel are required"),
        ({"channel": ""}, "--topic and --channel are required"),
        ({"nsqd_http_address": ()}, "--nsqd-http-address or --lookupd-http-address required"),
        ({"lookupd_http_address": ("a:1",)}, "use --nsqd-http-address or --lookupd-http-address not both"),
        (
            {"nsqd_http_address": ("http://a:1",)},
            "--nsqd-http-address error - address should not contain scheme",
        ),
        (
            {"nsqd_http_address": (), "lookupd_http_address": ("http://a:1",)},
            "--lookupd-http-address error - address should not contain scheme",
        ),
        ({"interval_ns": 0}, "--interval should be positive"),
        ({"count": 0}, "--count should be positive"),
        ({"http_client_connect_timeout_ns": 0}, "--http-client-connect-timeout should be positive"),
        ({"http_client_request_timeout_ns": -1}, "--http-client-request-timeout should be positive"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionsError) as raised:
        StatOptions(**(ASKED | options)).validated()
    assert str(raised.value) == complaint


def test_options_that_can_work_are_taken_as_they_are() -> None:
    options = StatOptions(**ASKED)
    assert options.validated() == options
