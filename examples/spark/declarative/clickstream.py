"""Visits from a topic into a table, counts of them as another table, and the visits without mistakes back into a topic.

Nothing here runs a query: Spark calls these functions to see what depends on what, and then does it.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

NSQD = os.environ.get("NSQD_HTTP", "127.0.0.1:4151")
SCHEMA = "id STRING, user STRING, page STRING, at TIMESTAMP"

spark = SparkSession.active()

dp.create_sink("checked", "nsq", {"nsqd": NSQD, "topic": "clicks.checked"})


@dp.table
def visits() -> DataFrame:
    """Every visit, read once: each run goes on where the last one was."""
    messages = spark.readStream.format("nsq").option("nsqd", NSQD).option("topic", "clicks").load()
    clicks = messages.select(F.from_json(F.col("body").cast("string"), SCHEMA).alias("click")).select("click.*")
    return clicks.where("id IS NOT NULL AND page IS NOT NULL AND at IS NOT NULL")


@dp.materialized_view
def visits_per_page() -> DataFrame:
    """Counted anew with each run."""
    return spark.read.table("visits").groupBy("page").count()


@dp.append_flow(target="checked")
def checked_visits() -> DataFrame:
    """What is in the table, as JSON for whoever consumes the topic."""
    return spark.readStream.table("visits").select(F.to_json(F.struct("*")).alias("body"))
