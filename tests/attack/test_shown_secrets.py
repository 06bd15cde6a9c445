"""A cluster that is closed by secrets: its own daemons, tools and clients get in, and tell the secrets to no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from emberq import ClientConfig, ConsumerConfig, Producer
from emberq.client import Consumer
from emberq.spark.archive import archive_pipeline
from emberq.spark.nsqd_http import AddressBook
from emberq.spark.option import SinkSettings
from tests.conftest import StartNsqd
from tests.nsqd.scripted_lookupd import ScriptedLookupd, channels, with_http
from tests.support.admin_rig import AdminThread
from tests.support.harness import NsqdHarness
from tests.support.http_client import Answer, HttpClient
from tests.support.lookupd_harness import LookupdHarness
from tests.support.scripted_server import ScriptedServer
from tests.support.threaded_http import NOT_FOUND, Received, Reply, ThreadedHttp
from tests.support.tool_process import run_tool
from tests.support.waiting import until, wait_until

NSQD_SECRET = "for-nsqds-and-for-no-other"
LOOKUPD_SECRET = "for-nsqlookupds-and-for-no-other"


class SecretFiles(NamedTuple):
    nsqd: str
    lookupd: str


@pytest.fixture
def files(tmp_path: Path) -> SecretFiles:
    paths = []
    for name, secret in (("nsqd", NSQD_SECRET), ("lookupd", LOOKUPD_SECRET)):
        path = tmp_path / f"{name}-secret"
        path.write_text(f"{secret}\n")
        path.chmod(0o600)
        paths.append(str(path))
    return SecretFiles(*paths)


@pytest.fixture
def lookupd(files: SecretFiles) -> Iterator[LookupdHarness]:
    with LookupdHarness(http_secret_file=files.lookupd, broadcast_address="127.0.0.1") as running:
        yield running


@pytest.fixture
def nsqd(start_nsqd: StartNsqd, lookupd: LookupdHarness, files: SecretFiles) -> NsqdHarness:
    """It is registered with the nsqlookupd, and has the topic `orders` with a channel `billing`."""
    running = start_nsqd(
        http_secret_file=files.nsqd,
        lookupd_secret_file=files.lookupd,
        lookupd_tcp_address=(text_of(lookupd.daemon.tcp_address),),
        broadcast_address="127.0.0.1",
    )
    running.create_channel("orders", "billing")
    wait_until(lambda: "billing" in asked(lookupd, "/channels?topic=orders").text)
    return running


def text_of(address: tuple[str, int] | str | None) -> str:
    assert isinstance(address, tuple)
    return f"{address[0]}:{address[1]}"


def asked(lookupd: LookupdHarness, target: str) -> Answer:
    return lookupd.http.request("GET", target, headers={"Authorization": f"Bearer {LOOKUPD_SECRET}"})


def lookupd_flag(lookupd: LookupdHarness) -> str:
    return f"--lookupd-http-address={text_of(lookupd.daemon.http_address)}"


# Those that belong to the cluster


def test_nsqd_shows_its_secret_where_it_asks_for_channels(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    registered = lookupd.nsqd("new")
    registered.register("new", "archive")
    nsqd.create_topic("new")
    wait_until(lambda: nsqd.has_channel("new", "archive"))


def test_nsqadmin_shows_each_daemon_its_secret(nsqd: NsqdHarness, lookupd: LookupdHarness, files: SecretFiles) -> None:
    with AdminThread(
        lookupd_http_address=(text_of(lookupd.daemon.http_address),),
        lookupd_secret_file=files.lookupd,
        nsqd_secret_file=files.nsqd,
        nsqd_secret_host=("127.0.0.0/8",),
    ) as admin:
        assert admin.get("/api/topics").json() == {"topics": ["orders"], "message": ""}
        shown = admin.get("/api/topics/orders").json()
        assert (shown["message"], [each["channel_name"] for each in shown["channels"]]) == ("", ["billing"])
        assert admin.post("/api/topics/orders", {"action": "pause"}).json()["message"] == ""
        assert nsqd.topic("orders").paused
        assert admin.post("/api/topics", {"topic": "made", "channel": "here"}).json()["message"] == ""
        assert admin.delete("/api/topics/orders/billing").json()["message"] == ""
    assert not nsqd.has_channel("orders", "billing")


def test_nsqadmin_that_has_no_secrets_gets_nothing(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    with AdminThread(lookupd_http_address=(text_of(lookupd.daemon.http_address),)) as admin:
        answer = admin.get("/api/topics")
        assert answer.status == 502
        assert "UNAUTHORIZED" in answer.json()["message"]
    with AdminThread(nsqd_http_address=(text_of(nsqd.nsqd.http_address),)) as admin:
        assert admin.get("/api/topics").status == 502


def test_nsqadmin_reads_the_secrets_of_others_again(nsqd: NsqdHarness, files: SecretFiles) -> None:
    with AdminThread(nsqd_http_address=(text_of(nsqd.nsqd.http_address),), nsqd_secret_file=files.nsqd) as admin:
        assert admin.get("/api/topics").status == 200
        Path(files.nsqd).write_text("another-secret-for-nsqds\n")
        nsqd.call(nsqd.nsqd.reload)
        assert admin.get("/api/topics").status == 502
        admin.call(admin.daemon.reload)
        assert admin.get("/api/topics").status == 200


@pytest.mark.loop("uvloop")
async def test_a_consumer_shows_its_secret_to_nsqlookupds(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    async with Producer(text_of(nsqd.nsqd.tcp_address)) as producer:
        await producer.publish("orders", b"hello")
    for secret, count in ((LOOKUPD_SECRET, 1), ("", 0)):
        async with Consumer(
            "orders",
            "billing",
            lookupd_addresses=text_of(lookupd.daemon.http_address),
            config=ConsumerConfig(lookupd_secret=secret.encode()),
        ) as consumer:
            assert len(consumer.statistics().addresses) == count


@pytest.mark.parametrize("place", ["a file", "the environment"])
def test_tools_and_commands_show_their_secrets(
    nsqd: NsqdHarness,
    lookupd: LookupdHarness,
    files: SecretFiles,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    given = [f"--auth-secret-file={files.nsqd}", f"--lookupd-secret-file={files.lookupd}"]
    if place == "the environment":
        monkeypatch.setenv("NSQ_AUTH_SECRET", NSQD_SECRET)
        monkeypatch.setenv("NSQ_LOOKUPD_SECRET", LOOKUPD_SECRET)
        given = []
    where = [lookupd_flag(lookupd), *given]
    tcp = f"--nsqd-tcp-address={text_of(nsqd.nsqd.tcp_address)}"
    assert run_tool("to_nsq", "--topic=orders", tcp, typed=b"hello\n").returncode == 0
    peeked = run_tool("peek", "orders", "billing", *where)
    assert (peeked.returncode, b"hello" in peeked.stdout) == (0, True), peeked.stderr
    counted = run_tool("nsq_stat", "--topic=orders", "--channel=billing", "--count=1", "--interval=10ms", *where)
    assert counted.returncode == 0, counted.stderr
    tailed = run_tool("nsq_tail", "--topic=orders", "--channel=billing", "-n", "1", *where)
    assert (tailed.returncode, tailed.stdout) == (0, b"hello\n"), tailed.stderr


def test_a_command_without_the_secret_says_so(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    done = run_tool("peek", "orders", "billing", lookupd_flag(lookupd))
    assert done.returncode == 1
    assert b"UNAUTHORIZED" in done.stderr
    assert b"--lookupd-secret-file for nsqlookupds" in done.stderr
    assert nsqd.has_channel("orders", "billing")


def test_spark_shows_each_daemon_its_secret(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    options = {"lookupd": text_of(lookupd.daemon.http_address), "lookupdSecret": LOOKUPD_SECRET}
    book = AddressBook(SinkSettings.of({**options, "authSecret": NSQD_SECRET}).access)
    assert book.nsqds() == [text_of(nsqd.nsqd.http_address)]
    assert book.peer(book.nsqds()[0]).get_json("/info")["tcp_port"] > 0
    book.close()


def test_a_replay_shows_each_daemon_its_secret(
    start_nsqd: StartNsqd, lookupd: LookupdHarness, files: SecretFiles
) -> None:
    nsqd = start_nsqd(
        http_secret_file=files.nsqd,
        lookupd_tcp_address=(text_of(lookupd.daemon.tcp_address),),
        broadcast_address="127.0.0.1",
        journal=True,
    )
    tcp = f"--nsqd-tcp-address={text_of(nsqd.nsqd.tcp_address)}"
    assert run_tool("to_nsq", "--topic=orders", tcp, typed=b"one\ntwo\n").returncode == 0
    wait_until(lambda: "orders" in asked(lookupd, "/topics").text)
    given = [f"--auth-secret-file={files.nsqd}", f"--lookupd-secret-file={files.lookupd}"]
    replayed = run_tool("replay", "orders", "--to=again", tcp, lookupd_flag(lookupd), *given)
    assert replayed.returncode == 0, replayed.stderr
    assert nsqd.topic("again").message_count == 2
    refused = run_tool("replay", "orders", "--to=again", tcp, lookupd_flag(lookupd), given[0])
    assert (refused.returncode, b'option "lookupdSecret" is missing or wrong' in refused.stderr) == (1, True)


def test_a_pipeline_shows_its_secrets_and_does_not_tell_them() -> None:
    secrets = {"authSecret": NSQD_SECRET, "lookupdSecret": LOOKUPD_SECRET}
    access = {"lookupd": "https://a:1", "tls": "true", "tlsCaFile": "/ca.pem", **secrets}
    pipeline = archive_pipeline(["orders"], "/archive", access=access, trigger="1s", options={})
    assert pipeline.access_options == access
    assert NSQD_SECRET not in repr(pipeline)
    assert LOOKUPD_SECRET not in repr(pipeline)


# Those that do not


class Trap:
    """A hostile nsqd or nsqlookupd that notes what it is shown."""

    def __init__(self, server: ThreadedHttp) -> None:
        self._server = server

    @property
    def shown(self) -> set[str | None]:
        """By what secrets are meant for: /ping is asked without one, to find out whether TLS is wanted."""
        asked = [request for request in self._server.received if request.target != "/ping"]
        assert not any("Authorization" in request.headers for request in self._server.received if request not in asked)
        return {request.headers.get("Authorization") for request in asked}


@pytest.fixture
def hostile_nsqd() -> Iterator[tuple[ThreadedHttp, Trap]]:
    stats = {"version": "1.3.0", "health": "OK", "topics": []}
    with ThreadedHttp(lambda _request: Reply(stats)) as server:
        yield server, Trap(server)


def look(admin: AdminThread) -> None:
    """What has nsqadmin ask every nsqd that its nsqlookupds name, and change something there."""
    for target in ("/api/nodes", "/api/topics/orders", "/api/counter", "/api/view?view=topics"):
        admin.get(target)
    admin.get("/api/peek/orders/billing")
    admin.post("/api/topics/orders", {"action": "pause"})
    admin.post("/api/publish/orders", {"body": "x"})


@pytest.mark.parametrize(
    ("hosts", "is_shown"),
    [((), False), (("q1", ".example.com", "10.0.0.0/8"), False), (("127.0.0.1",), True), (("*",), True)],
)
def test_nsqadmin_shows_its_secret_to_nsqds_on_hosts_of_the_operator_alone(
    files: SecretFiles, hostile_nsqd: tuple[ThreadedHttp, Trap], hosts: tuple[str, ...], *, is_shown: bool
) -> None:
    server, trap = hostile_nsqd
    with ExitStack() as running:
        lookupd = running.enter_context(LookupdHarness())
        lookupd.nsqd("orders", broadcast_address="127.0.0.1", http_port=server.port)
        admin = running.enter_context(
            AdminThread(
                lookupd_http_address=(text_of(lookupd.daemon.http_address),),
                nsqd_secret_file=files.nsqd,
                lookupd_secret_file=files.lookupd,
                nsqd_secret_host=hosts,
            )
        )
        look(admin)
    assert trap.shown == ({f"Bearer {NSQD_SECRET}"} if is_shown else {None})


def test_nsqadmin_says_at_its_start_that_its_secret_is_shown_to_no_nsqd(
    files: SecretFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with LookupdHarness() as lookupd:
        address = text_of(lookupd.daemon.http_address)
        where: dict[str, Any] = {"lookupd_http_address": (address,), "nsqd_secret_file": files.nsqd}
        with AdminThread(**where, nsqd_secret_host=("*",)):
            assert "--nsqd-secret-host" not in caplog.text
        with AdminThread(**where):
            assert "say by --nsqd-secret-host which are yours" in caplog.text


@pytest.fixture
def hostile_lookupd() -> Iterator[tuple[ThreadedHttp, Trap]]:
    def answer(request: Received) -> Reply:
        path = request.target.partition("?")[0]
        if path == "/topics":
            return Reply({"topics": ["orders"]})
        return Reply({"channels": [], "producers": []}) if path in ("/lookup", "/nodes") else NOT_FOUND

    with ThreadedHttp(answer) as server:
        yield server, Trap(server)


@pytest.mark.parametrize("with_own", [True, False])
def test_nsqadmin_never_shows_nsqlookupds_the_secret_for_nsqds(
    files: SecretFiles, hostile_lookupd: tuple[ThreadedHttp, Trap], *, with_own: bool
) -> None:
    server, trap = hostile_lookupd
    with AdminThread(
        lookupd_http_address=(server.address,),
        nsqd_secret_file=files.nsqd,
        nsqd_secret_host=("*",),
        lookupd_secret_file=files.lookupd if with_own else "",
    ) as admin:
        look(admin)
    assert trap.shown == {f"Bearer {LOOKUPD_SECRET}" if with_own else None}


@pytest.mark.loop("uvloop")
async def test_nsqd_shows_nothing_to_nsqlookupds_that_were_set_since(nsqd: NsqdHarness) -> None:
    shown = {"Authorization": f"Bearer {NSQD_SECRET}"}
    with ScriptedServer(channels("archive")) as trap:
        async with ScriptedLookupd(with_http(trap.port)) as hostile:
            http, addresses = HttpClient(nsqd.http_address), json.dumps([hostile.address]).encode()
            answer = http.request("PUT", "/config/nsqlookupd_tcp_addresses", addresses, headers=shown)
            assert answer.status == 200
            await hostile.expect("connected", "IDENTIFY")
            await asyncio.to_thread(nsqd.create_topic, "new")
            await until(lambda: bool(trap.requests))
    assert trap.requests[0].startswith(b"GET /channels?topic=new ")
    assert b"Authorization" not in trap.requests[0]


def test_nsqadmin_shows_nothing_to_nsqlookupds_that_were_set_since(
    files: SecretFiles, hostile_lookupd: tuple[ThreadedHttp, Trap]
) -> None:
    server, trap = hostile_lookupd
    with (
        LookupdHarness() as lookupd,
        AdminThread(
            lookupd_http_address=(text_of(lookupd.daemon.http_address),),
            nsqd_secret_file=files.nsqd,
            nsqd_secret_host=("*",),
            lookupd_secret_file=files.lookupd,
        ) as admin,
    ):
        assert admin.put("/config/nsqlookupd_http_addresses", [server.address]).status == 200
        look(admin)
    assert trap.shown == {None}


@pytest.mark.loop("uvloop")
async def test_a_consumer_with_a_secret_for_nsqlookupds_keeps_the_other(
    hostile_lookupd: tuple[ThreadedHttp, Trap],
) -> None:
    server, trap = hostile_lookupd
    async with Consumer(
        "orders",
        "billing",
        lookupd_addresses=server.address,
        config=ConsumerConfig(lookupd_secret=LOOKUPD_SECRET.encode()),
        client_config=ClientConfig(auth_secret=NSQD_SECRET.encode()),
    ):
        pass
    assert trap.shown == {f"Bearer {LOOKUPD_SECRET}"}


def test_no_log_line_and_no_error_shows_a_secret(
    nsqd: NsqdHarness, lookupd: LookupdHarness, files: SecretFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    http = HttpClient(nsqd.http_address)
    for headers in ({}, {"Authorization": f"Bearer {NSQD_SECRET}"}, {"Authorization": f"Bearer x{NSQD_SECRET}"}):
        http.request("GET", "/stats", headers=headers)
        http.request("GET", "/config/http_secret_file", headers=headers)
        lookupd.http.request("GET", "/nodes", headers=headers)
    nsqd.call(nsqd.nsqd.reload)
    done = run_tool(
        "nsq_stat", "--topic=t", "--channel=c", lookupd_flag(lookupd), f"--lookupd-secret-file={files.nsqd}"
    )
    assert done.returncode == 1
    for text in (caplog.text, done.stdout.decode(), done.stderr.decode()):
        assert NSQD_SECRET not in text
        assert LOOKUPD_SECRET not in text


def test_the_paths_of_the_files_are_shown_and_not_what_is_in_them(nsqd: NsqdHarness, files: SecretFiles) -> None:
    headers = {"Authorization": f"Bearer {NSQD_SECRET}"}
    for key, path in (("http_secret_file", files.nsqd), ("lookupd_secret_file", files.lookupd)):
        answer = HttpClient(nsqd.http_address).request("GET", f"/config/{key}", headers=headers)
        assert answer.text == path
