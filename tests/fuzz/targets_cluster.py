"""Targets of nsqadmin: hostile requests to it, and hostile answers of the daemons that it asks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from emberq.admin.daemon import Nsqadmin
from emberq.admin.document import encode_in_pieces
from emberq.admin.options import AdminOptions
from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.cluster.node_stats import StatsReader
from emberq.cluster.pipeline_feed import PipelineFeed
from emberq.cluster.stats import total_channel, total_topic
from emberq.cluster.upstream import MalformedDocumentError, as_document
from emberq.http.client import HttpQueryError, UnexpectedStatusError, public_url
from emberq.tools.nsq_stat import row
from tests.fuzz.engine import Target, tells_in_a_line
from tests.fuzz.stage import Address, BystanderError, DaemonTarget, http_get
from tests.fuzz.targets_wire import HttpReaderTarget
from tests.support.cluster_rig import NODE, channel_entry, topic_entry
from tests.support.pipeline_report import HEARTBEAT, REPORT

LOOKUPD = "127.0.0.1:1"
NODE_ADDRESS = "127.0.0.1:2"
CLIENT = {"client_id": "c", "hostname": "h", "remote_address": "10.0.0.1:1", "connect_ts": 1, "user_agent": "a/1"}
LATENCY = {"count": 3, "percentiles": [{"quantile": 0.99, "value": 1000.0}]}
TOPICS = [
    topic_entry("t", channel_entry("c", clients=[CLIENT], client_count=1, e2e_processing_latency=LATENCY), depth=3),
    topic_entry("u#ephemeral", channel_entry("d", policy={"max_attempts": 3, "dead_letter_topic": "dead"})),
]
STATS = {"version": "1.3.0", "health": "OK", "topics": TOPICS, "memory": {"heap_objects": 1, "gc_pause": 1.5}}
INFO = {"broadcast_address": "127.0.0.1", "hostname": "h", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}
NODES = {"producers": [INFO | {"topics": ["t"], "tombstones": [False], "remote_address": "127.0.0.1:9"}]}
STATUSES = {200, 301, 303, 400, 401, 403, 404, 405, 413, 429, 501, 502}
"""What nsqadmin may answer. 500 is not among them: it says that a handler crashed."""


class StatsTarget(Target):
    """What an nsqd says in /stats: the figures are read and summed, or refused in a line."""

    name = "stats"
    modules = ("cluster/node_stats.py", "cluster/stats.py", "cluster/upstream.py")
    tokens = (b'"topics":', b'"channels":', b'"clients":', b"null", b"[]", b"{}", b"1e5", b'"policy":', b'"memory":')
    slice_count = 200

    def seeds(self) -> Iterable[bytes]:
        yield json.dumps(STATS).encode()
        yield json.dumps({"status_code": 200, "data": STATS}).encode()
        yield b'{"topics":[]}'

    def play(self, data: bytes) -> None:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            return
        try:
            figures = StatsReader(NODE).figures(as_document(answer), with_details=True)
        except MalformedDocumentError as wrong:
            tells_in_a_line(wrong)
            return
        assert len(figures.settled) == len(figures.keys)
        topics = figures.topics()
        if topics:
            total_topic("t", topics)
        channels = [channel for topic in topics for channel in topic.channels]
        if channels:
            total = total_channel(channels)
            assert row(total, total, interval_ns=NS_PER_SECOND)


class PipelineReportTarget(Target):
    """What any publisher may send to the topic of Spark's pipelines: a report in each line, all shown in the end."""

    name = "pipeline-report"
    modules = ("cluster/pipeline_feed.py", "cluster/upstream.py")
    tokens = (b'"pipeline":"p"', b'"query":"q"', b'"rows":', b'"duration_ms":5', b"null", b"\n", b"9" * 4300)
    max_bytes = 16384

    def seeds(self) -> Iterable[bytes]:
        yield json.dumps(REPORT).encode()
        yield b"\n".join(json.dumps(report).encode() for report in (REPORT, HEARTBEAT, REPORT))

    def play(self, data: bytes) -> None:
        feed = PipelineFeed(clock=ManualClock())
        for report in data.split(b"\n"):
            feed.read(report)
        encode_in_pieces(feed.document())


class AdminTarget(DaemonTarget):
    """A whole nsqadmin, open to all, that gets hostile requests. The cluster behind it is sound."""

    name = "admin"
    modules: ClassVar[tuple[str, ...]] = (
        "admin/*.py",
        "admin/api/*.py",
        "admin/access/*.py",
        "admin/web/*.py",
        "http/browser.py",
    )
    ends_with_client = False
    slice_count = 40
    max_cpu_s = 2.0
    tokens: ClassVar[tuple[bytes, ...]] = (
        *HttpReaderTarget.tokens[:12],
        b"/api/topics",
        b"/api/topics/t",
        b"/api/topics/t/c",
        b"/api/nodes/127.0.0.1:2",
        b"/api/counter",
        b"/api/publish/t",
        b"/api/peek/t/c?count=2",
        b"/api/view?view=topics",
        b"/api/history?topic=t",
        b"/static/",
        b"/login",
        b"Cookie: session=x\r\n",
        b"Authorization: Basic YTpi\r\n",
        b"Origin: http://localhost\r\n",
        b"X-CSRF-Token: x\r\n",
        b'{"action":"pause"}',
        b'"action":"empty"',
        b"%2f..",
    )

    def seeds(self) -> Iterable[bytes]:
        host = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        pages = (b"/", b"/topics/t", b"/topics/t/c", b"/nodes", b"/counter", b"/login", b"/static/main.css", b"/ping")
        for path in (*pages, *(path.encode() for path in QUESTIONS)):
            yield b"GET " + path + host + b"\r\n"
        for line, body in CHANGES:
            yield line + host + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)

    async def start(self) -> Address:
        options = AdminOptions(http_address="127.0.0.1:0", lookupd_http_address=(LOOKUPD,), history_duration_ns=0)
        self._clock = ManualClock()
        self._admin = Nsqadmin(options, clock=self._clock)
        self._answers: dict[str, bytes] = SOUND
        http = self._admin.cluster.http
        http.get = self._get  # type: ignore[method-assign]
        http.post = self._post  # type: ignore[method-assign]
        await self._admin.start()
        return self._admin.http_address

    async def stop(self) -> None:
        await self._admin.stop()

    async def bystand(self) -> None:
        status, body = await http_get(self._admin.http_address, "/ping")
        if (status, body) != (200, b"OK"):
            raise BystanderError(f"/ping: {status} {body!r}")

    async def tidy(self) -> None:
        self._clock.advance(seconds=60)  # or what was seen of the cluster before would be shown again

    # The daemons that nsqadmin asks: no question leaves this process

    async def _get(self, url: str, *, headers: Mapping[str, str] | None = None) -> bytes:
        body = self._answers.get(urlsplit(public_url(url)).path)  # HttpQueryError if it is no URL, as from a client
        if body is None:
            raise UnexpectedStatusError(status=404, reason="Not Found", body=b'{"message":"NOT_FOUND"}')
        if not body:
            raise HttpQueryError("no answer in time")
        return body

    async def _post(self, url: str, body: bytes = b"", **_more: Any) -> bytes:
        return await self._get(url)


QUESTIONS = (
    "/api/topics",
    "/api/topics?inactive=true",
    "/api/topics/t",
    "/api/topics/t/c",
    "/api/nodes",
    f"/api/nodes/{NODE_ADDRESS}",
    "/api/counter",
    "/api/journal/t",
    "/api/seek/t/c?to=earliest",
    "/api/peek/t/c",
    "/api/absent",
    "/api/view?view=topics",
    "/api/view?view=nodes",
    "/api/view?view=counter",
    "/api/view?view=topic&topic=t",
    "/api/view?view=channel&topic=t&channel=c",
    f"/api/view?view=node&node={NODE_ADDRESS}",
)
CHANGES = (
    (b"POST /api/topics", b'{"topic":"t","channel":"c"}'),
    (b"POST /api/topics/t", b'{"action":"pause"}'),
    (b"POST /api/topics/t/c", b'{"action":"empty"}'),
    (b"POST /api/topics/t/c", b'{"action":"seek","to":"earliest","node":""}'),
    (b"POST /api/topics/t/c", b'{"action":"redrive","to":"t","count":3}'),
    (b"POST /api/topics/t/c", b'{"action":"set_policy","max_attempts":3,"dead_letter_topic":"dead"}'),
    (b"POST /api/publish/t", b'{"body":"hello","defer_ms":2}'),
    (b"DELETE /api/topics/t", b""),
    (b"DELETE /api/nodes/127.0.0.1:2", b'{"topic":"t"}'),
    (b"DELETE /api/absent/127.0.0.1:2", b""),
    (b"POST /login", b"user=a&password=b"),
    (b"PUT /config/log_level", b"info"),
    (b"PUT /config/nsqlookupd_http_addresses", b'["127.0.0.1:1"]'),
)
"""What changes something, and the body that says how."""
SOUND: dict[str, bytes] = {
    "/topics": b'{"topics":["t","gone"]}',
    "/lookup": json.dumps({"channels": ["c"], **NODES}).encode(),
    "/nodes": json.dumps(NODES).encode(),
    "/stats": json.dumps(STATS).encode(),
    "/info": json.dumps(INFO).encode(),
    "/channel/peek": b'{"messages":[{"id":"0123456789abcdef","timestamp":1,"attempts":1,"body":"x"}]}',
    "/channel/seek": b'{"offset":3}',
    "/channel/redrive": b'{"moved":3,"left":0}',
    "/journal": b'{"topic":"t","first_offset":0,"next_offset":3,"segments":[]}',
}


class UpstreamTarget(AdminTarget):
    """A whole nsqadmin whose daemons answer with the input: `==> /path` and the JSON that is answered there."""

    name = "upstream"
    modules = ("cluster/*.py", "admin/*.py", "admin/api/*.py")
    slice_count = 20
    max_cpu_s = 3.0
    tokens = (
        *(f"==> {path}\n".encode() for path in SOUND),
        *StatsTarget.tokens,
        b'"producers":',
        b'"broadcast_address":',
        b'"\\ud800"',
        b'"\\u0000"',
    )

    def seeds(self) -> Iterable[bytes]:
        yield b"".join(b"==> %b\n%b" % (path.encode(), body) for path, body in SOUND.items())
        for path, body in SOUND.items():
            yield b"==> %b\n%b" % (path.encode(), body)

    def play(self, data: bytes) -> None:
        parts = re.split(rb"==> ([^\n]*)\n", data)
        said = {path.decode("latin-1"): body for path, body in zip(parts[1::2], parts[2::2], strict=True)}
        self._answers = SOUND | said
        super().play(data)

    async def attack(self, data: bytes) -> None:
        """Here the attacker is whom nsqadmin asks; an honest user asks nsqadmin for everything."""
        self._has_begun.set()
        for question in QUESTIONS:
            status, body = await http_get(self._admin.http_address, question)
            assert status in STATUSES, (question, status, body)
            if status == 200:
                json.loads(body, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON, and no browser reads it")


TARGETS: tuple[type[Target], ...] = (StatsTarget, PipelineReportTarget, AdminTarget, UpstreamTarget)
