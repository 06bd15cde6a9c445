"""examples/secure: the files close every door, and what they start works for those who have the keys."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.client import ClientConfig, ConsumerConfig
from emberq.sync import Consumer, Producer
from tests.support.closed_cluster import EXAMPLE, HOST, ClosedCluster, closed_cluster, prepared
from tests.support.command import require_command
from tests.support.pipeline_report import REPORT
from tests.support.tool_process import ToolProcess, run_tool
from tests.support.waiting import PATIENCE_S, wait_until

DAEMONS = ["nsqd", "nsqlookupd", "nsqadmin"]


@pytest.fixture(scope="module", autouse=True)
def _openssl() -> None:
    require_command("openssl")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedCluster]:
    with closed_cluster(tmp_path_factory.mktemp("closed")) as running:
        yield running


@pytest.mark.parametrize("daemon", DAEMONS)
def test_the_configuration_leaves_nothing_open(tmp_path: Path, daemon: str) -> None:
    checked = prepared(tmp_path).run_to_its_end(daemon, "--check-config")
    assert checked.stdout.endswith("All is closed.\n"), checked
    assert checked.returncode == 0
    assert checked.stderr == ""


def test_what_the_script_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = prepared(tmp_path).folder
    made = [path for path in folder.iterdir() if path.is_file()]
    assert {"ca.pem", "http.secret", "nsqd.key", "client.pem"} <= {path.name for path in made}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in made)


def test_no_line_of_the_files_names_another_machine() -> None:
    """What `ClosedCluster.config` replaces is all there is to replace."""
    for daemon in DAEMONS:
        text = (EXAMPLE / f"{daemon}.cfg").read_text()
        assert text.count(".example") == text.count("nsq.example")


def test_a_message_goes_through_with_the_keys(cluster: ClosedCluster) -> None:
    config = ClientConfig(tls=cluster.context())
    lookupd = f"https://{HOST}:{cluster.ports['nsqlookupd', 'HTTPS']}"
    with Producer(f"{HOST}:{cluster.ports['nsqd', 'TCP']}", config) as producer:
        producer.publish("orders", b"one")
    found = Consumer(
        "orders",
        "billing",
        lookupd_addresses=[lookupd],
        config=ConsumerConfig(lookupd_secret=cluster.secret.encode(), lookupd_poll_interval_s=1),
        client_config=config,
    )
    with found as consumer:
        message = consumer.get(timeout_s=PATIENCE_S)
        assert message is not None
        assert message.body == b"one"
        message.finish()


def test_the_http_apis_answer_to_certificate_and_secret(cluster: ClosedCluster) -> None:
    assert cluster.ask("nsqd", "POST", "/pub?topic=by.http", body=b"one").text == "OK"
    assert cluster.ask("nsqd", "GET", "/stats?format=json&topic=by.http").json()["topics"][0]["depth"] == 1
    wait_until(lambda: cluster.ask("nsqlookupd", "GET", "/lookup?topic=by.http").status == 200)
    (nsqd,) = cluster.ask("nsqlookupd", "GET", "/lookup?topic=by.http").json()["producers"]
    assert nsqd["tcp_port"] == cluster.ports["nsqd", "TCP"]


def test_nsqadmin_shows_the_cluster_and_acts_on_it(cluster: ClosedCluster) -> None:
    page = cluster.ask("nsqadmin", "GET", "/nodes", shows_certificate=False)
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert cluster.ask("nsqd", "POST", "/topic/create?topic=shown").status == 200
    assert cluster.ask("nsqd", "POST", "/channel/create?topic=shown&channel=c").status == 200
    wait_until(lambda: "shown" in cluster.ask("nsqadmin", "GET", "/api/topics").json()["topics"])
    paused = cluster.ask("nsqadmin", "POST", "/api/topics/shown/c", body=b'{"action": "pause"}')
    assert (paused.status, paused.json()["message"]) == (200, "")
    shown = cluster.ask("nsqadmin", "GET", "/api/topics/shown").json()
    assert [(channel["channel_name"], channel["paused"]) for channel in shown["channels"]] == [("c", True)]
    assert shown["message"] == ""


def test_nsqadmin_follows_pipelines_by_tls(cluster: ClosedCluster) -> None:
    with Producer(f"{HOST}:{cluster.ports['nsqd', 'TCP']}", ClientConfig(tls=cluster.context())) as producer:
        producer.publish("emberq.pipelines", json.dumps(REPORT).encode())
    wait_until(lambda: "clickstream" in cluster.ask("nsqadmin", "GET", "/api/pipelines").text, interval_s=0.1)


def test_the_guide_shows_what_is_printed(tmp_path: Path) -> None:
    """The example in docs/SECURITY.md, but for the folder of the certificates."""
    folder = prepared(tmp_path).folder
    flags = [
        f"--tls-cert={folder}/nsqd.pem",
        f"--tls-key={folder}/nsqd.key",
        "--tls-required=true",
        "--auth-http-address=https://auth.example/auth",
        "--lookupd-tcp-address=nsq.example:4160",
        f"--data-path={folder}/data",
        "--check-config",
    ]
    command = [sys.executable, "-m", "emberq.cli.main", "nsqd", *flags]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert checked.returncode == 1
    guide = (EXAMPLE.parents[1] / "docs" / "SECURITY.md").read_text()
    assert f"```\n{checked.stdout}```\n" in guide, checked.stdout


def depth_of(cluster: ClosedCluster, topic: str) -> int:
    """Of the topic's only channel."""
    (found,) = cluster.ask("nsqd", "GET", f"/stats?format=json&topic={topic}").json()["topics"]
    (channel,) = found["channels"]
    return int(channel["depth"])


def test_the_tools_work_with_the_keys(cluster: ClosedCluster) -> None:
    folder, lookupd = cluster.folder, f"--lookupd-http-address=https://{HOST}:{cluster.ports['nsqlookupd', 'HTTPS']}"
    secrets = [f"--auth-secret-file={folder}/http.secret", f"--lookupd-secret-file={folder}/http.secret"]
    assert cluster.ask("nsqd", "POST", "/pub?topic=tooled", body=b"one").text == "OK"
    assert cluster.ask("nsqd", "POST", "/channel/create?topic=tooled&channel=c").status == 200
    wait_until(lambda: cluster.ask("nsqlookupd", "GET", "/lookup?topic=tooled").status == 200)
    # A new topic keeps its messages until nsqlookupd has said which channels it has elsewhere.
    wait_until(lambda: depth_of(cluster, "tooled") == 1)

    asked = ["--topic=tooled", "--channel=c", lookupd, *secrets]
    files = [f"--http-client-tls-{name}" for name in (f"root-ca-file={folder}/ca.pem", f"cert={folder}/client.pem")]
    stat_files = [*files, f"--http-client-tls-key={folder}/client.key"]
    figures = run_tool("nsq_stat", *asked, *stat_files, "--count=1", "--interval=100ms")
    assert figures.returncode == 0, figures.stderr
    assert figures.stdout.splitlines()[-1].split()[3] == b"1"

    files = [f"--tls-root-ca-file={folder}/ca.pem", f"--tls-cert={folder}/client.pem", f"--tls-key={folder}/client.key"]
    peeked = run_tool("peek", "tooled", "c", lookupd, *secrets, *files)
    assert peeked.returncode == 0, peeked.stderr
    assert b"one" in peeked.stdout

    options = ["tls_v1", f"tls_root_ca_file,{folder}/ca.pem", f"tls_cert,{folder}/client.pem"]
    flags = [f"--consumer-opt={option}" for option in (*options, f"tls_key,{folder}/client.key")]
    with ToolProcess("nsq_tail", "--topic=tooled", "--channel=c", lookupd, "-n=1", *flags, *secrets) as tail:
        assert tail.read_line() == b"one\n"
