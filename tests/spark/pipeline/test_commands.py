"""The commands that use Spark, as a user meets them. `emberq sql` is started as a process by the test of the README."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from emberq.cli import archive, pipeline, replay, sql
from emberq.spark.archive import TimeRange, archived_count, archived_topics
from emberq.spark.pipeline.files import data_files
from tests.support.journal_nsqd import JournalNsqd
from tests.support.topic_reading import bodies_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "spark"
PROCESS_TIMEOUT_S = 280.0


def run(*command: str, folder: Path, **environment: str) -> str:
    """The standard output of a command that must succeed."""
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.timeout(300)
def test_an_hour_is_archived_merged_and_replayed(nsqd: JournalNsqd, tmp_path: Path) -> None:
    published = [b"message %d" % number for number in range(500)]
    for part in range(0, 500, 100):
        nsqd.publish("clicks", published[part : part + 100])
    now = datetime.now(UTC)
    start, end = ((now + timedelta(hours=hours)).isoformat() for hours in (-1, 1))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    tcp = f"127.0.0.1:{nsqd.tcp_port}"
    script = str(EXAMPLES / "replay_an_hour.sh")
    output = run(script, "clicks", "archive", start, end, folder=tmp_path, PATH=path, NSQD_HTTP=nsqd.http, NSQD_TCP=tcp)
    assert "archived 500 messages" in output
    assert "published 500 messages to clicks.replayed" in output
    assert sorted(bodies_of(nsqd.http, "clicks.replayed")) == sorted(published)
    folder = tmp_path / "archive"
    assert archived_topics(folder) == ["clicks"]
    long_ago = TimeRange(end_ns=int((now - timedelta(hours=1)).timestamp() * 1e9))
    assert archived_count(folder, "clicks", TimeRange()) == 500
    assert archived_count(folder, "clicks", long_ago) == 0
    assert data_files(folder)


def test_sql_over_a_topic_gives_lines_of_json_and_tells_what_it_leaves_out(
    spark: SparkSession, nsqd: JournalNsqd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sql, "spark_session", lambda *_: nullcontext(spark))
    nsqd.publish("page.views", [b'{"page": "/", "n": 1}', b'{"page": "/", "n": 2}', b'{"page": "/cart", "n": 4}', b"?"])
    statement = "SELECT page, sum(n) AS n FROM page_views GROUP BY page ORDER BY page"
    assert sql.main([f"--nsqd-http-address={nsqd.http}", "--topic=page.views", "--json", statement]) == 0
    said = capsys.readouterr()
    assert [json.loads(line) for line in said.out.splitlines()] == [{"page": "/", "n": 3}, {"page": "/cart", "n": 4}]
    assert "1 of 4 messages are not in page_views" in said.err
    assert "the view page_views_unparsed has them, with reason and text" in said.err


def test_the_journal_is_replayed_from_a_time_on(nsqd: JournalNsqd, capsys: pytest.CaptureFixture[str]) -> None:
    nsqd.publish("clicks", [b"early"])
    between = datetime.now(UTC).isoformat()
    nsqd.publish("clicks", [b"late", b"later"])
    addresses = [f"--nsqd-http-address={nsqd.http}", f"--nsqd-tcp-address=127.0.0.1:{nsqd.tcp_port}"]
    assert replay.main(["clicks", "--to", "again", f"--start={between}", *addresses]) == 0
    assert bodies_of(nsqd.http, "again") == [b"late", b"later"]
    assert replay.main(["clicks", "--to", "clicks", "--json", *addresses]) == 0  # into itself, and not for ever
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["published"] == 3
    assert len(bodies_of(nsqd.http, "clicks")) == 6


def test_a_topic_that_is_not_there_is_told(
    nsqd: JournalNsqd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay.main(["nothing", "--to", "again", f"--nsqd-http-address={nsqd.http}"]) == 1
    assert "no nsqd has topic nothing" in capsys.readouterr().err
    assert replay.main(["nothing", "--to", "again", f"--archive={tmp_path}"]) == 1
    assert "it is no archive" in capsys.readouterr().err
    assert archive.main(["compact", str(tmp_path / "nowhere")]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_validate_tells_every_problem_and_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "clicks.toml"
    text = (EXAMPLES / "clickstream.toml").read_text()
    file.write_text(text.replace('"10 seconds"', '"soon"').replace('from = "clicks"', 'from = "klicks"'))
    assert pipeline.main(["validate", "--quick", str(file)]) == 1
    complaints = capsys.readouterr().err.splitlines()
    assert len(complaints) == 2
    assert all(f"emberq pipeline: {file}:" in line for line in complaints)
    file.write_text(text)
    assert pipeline.main(["validate", "--quick", str(file)]) == 0
    assert "is right: clicks -> live-counts, final-counts, archive" in capsys.readouterr().out


def test_status_of_a_pipeline_that_never_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "clicks.toml"
    file.write_text((EXAMPLES / "clickstream.toml").read_text())
    assert pipeline.main(["status", str(file)]) == 0
    assert "has never run" in capsys.readouterr().err
