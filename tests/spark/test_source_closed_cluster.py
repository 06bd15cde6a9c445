"""Spark and a cluster that is closed as docs/SECURITY.md says: HTTPS, certificates, secrets, and AUTH on TCP.

All that Spark does with it is done here once. Its secret is in no plan, no page of Spark's UI, no file and no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from emberq.spark.pipeline.checkpoint import pipeline_status
from emberq.spark.pipeline.model import AVAILABLE_NOW, Pipeline, Sink, Source, View
from emberq.spark.pipeline.run import PipelineRun
from emberq.spark.sql import SqlConsole
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.closed_cluster import ClosedCluster, closed_cluster
from tests.support.command import require_command

BODIES = ['{"page": "/", "n": 1}', '{"page": "/", "n": 2}', '{"page": "/cart", "n": 4}']


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClosedCluster]:
    require_command("openssl")
    folder = tmp_path / "closed"
    folder.mkdir()
    with AuthServer(grant(entry())) as server:
        flags = ("--journal-topic=^clicks", f"--auth-http-address={server.address}")
        with closed_cluster(folder, *flags) as running:
            yield running
        assert {question.params["secret"][0] for question in server.questions} == {running.secret}


def access(cluster: ClosedCluster) -> dict[str, str]:
    """The options that open it."""
    files = {"tlsCaFile": "ca.pem", "tlsCertFile": "client.pem", "tlsKeyFile": "client.key"}
    return {
        "lookupd": f"https://127.0.0.1:{cluster.ports['nsqlookupd', 'HTTPS']}",
        "tls": "true",
        "authSecret": cluster.secret,
        **{option: str(cluster.folder / name) for option, name in files.items()},
    }


def write(spark: SparkSession, topic: str, options: Mapping[str, str]) -> None:
    rows = spark.createDataFrame([(body,) for body in BODIES], "body STRING")
    rows.write.format("nsq").mode("append").options(**options, topic=topic).save()


def consume(spark: SparkSession, topic: str, folder: Path, options: Mapping[str, str]) -> tuple[DataFrame, str]:
    """What a channel has, stored as Parquet by a stream that ends; and the plan of that stream."""
    stream = spark.readStream.format("nsq").options(
        **options, topic=topic, mode="channel", channel="spark", spool=str(folder / "spool")
    )
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "rows"))
    query.awaitTermination()
    java_query: Any = query._jsq
    return spark.read.parquet(str(folder / "rows")), java_query.explainInternal(True)


def run(spark: SparkSession, pipeline: Pipeline) -> None:
    running = PipelineRun(pipeline, spark)
    try:
        running.start()
        running.wait()
    finally:
        running.stop()


def refusal(spark: SparkSession, options: Mapping[str, str]) -> str:
    """How a read that must fail tells why, with all that Spark adds to it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark has a class of its own for errors in each place
        spark.read.format("nsq").options(**options).load().collect()
    return f"{caught.value!r} {caught.value}"


def shown_by_spark(spark: SparkSession) -> str:
    """What the SQL pages of Spark's UI show of everything that has run."""
    java_session: Any = spark._jsparkSession
    executions = java_session.sharedState().statusStore().executionsList()
    return "\n".join(
        f"{each.description()} {each.details()} {each.physicalPlanDescription()} {each.modifiedConfigs()}"
        for each in (executions.apply(index) for index in range(executions.size()))
    )


def test_spark_works_with_a_closed_cluster_and_keeps_its_secret(
    spark: SparkSession, cluster: ClosedCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    opened, folder = access(cluster), tmp_path / "work"
    written = sorted(body.encode() for body in BODIES)

    write(spark, "clicks", opened)
    rows = spark.read.format("nsq").options(**opened, topic="clicks").load()
    assert sorted(row.body for row in rows.collect()) == written
    java_rows: Any = rows._jdf
    plans = [java_rows.queryExecution().toString()]

    cluster.ask("nsqd", "POST", "/channel/create?topic=plain&channel=spark")
    write(spark, "plain", opened)
    consumed, plan = consume(spark, "plain", folder, opened)
    assert sorted(row.body for row in consumed.collect()) == written
    plans.append(plan)

    console = SqlConsole(spark)
    console.add_topic("clicks", access=opened, schema="page STRING, n INT", raw=False)
    assert console.rows("SELECT sum(n) FROM clicks", max_rows=1).items == [(7,)]
    plans.append(str(console.rows("EXPLAIN EXTENDED SELECT * FROM clicks", max_rows=100).items))

    secrets = {"authSecret": opened["authSecret"]}
    pipeline = Pipeline(  # `emberq archive` runs one, too
        name="closed",
        checkpoint=str(folder / "pipeline"),
        lookupd=(opened["lookupd"],),
        options={name: text for name, text in opened.items() if name not in ("lookupd", *secrets)},
        secrets=secrets,
        trigger=AVAILABLE_NOW,
        sources={"clicks": Source(topic=("clicks",), schema="page STRING, n INT")},
        views={"doubled": View(sql="SELECT page, 2 * n AS n FROM clicks")},
        sinks={"doubled": Sink(view="doubled", topic="clicks.doubled")},
    )
    run(spark, pipeline)
    doubled = spark.read.format("nsq").options(**opened, topic="clicks.doubled").load()
    assert doubled.count() == len(BODIES)
    assert [status.lag for status in pipeline_status(pipeline)] == [0]

    without = {name: text for name, text in opened.items() if name != "authSecret"}
    told = [refusal(spark, {**opened, "topic": "plain"}), refusal(spark, {**without, "topic": "clicks"})]
    assert 'option "lookupdSecret" is missing or wrong' in told[1]

    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if cluster.secret.encode() in path.read_bytes()]
    out, err = capfd.readouterr()
    shown = {"plans": str(plans), "errors": str(told), "pages": shown_by_spark(spark), "output": out + err}
    assert "nsq" in shown["plans"]
    assert "nsq" in shown["pages"]
    assert not [place for place, text in shown.items() if cluster.secret in text]
    logs = "".join(path.read_text() for path in cluster.logs.values())
    assert cluster.secret not in logs
