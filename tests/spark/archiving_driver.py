"""A Spark driver of its own, to be killed: streams a topic into Parquet files for as long as it lives.

python -m tests.spark.archiving_driver NSQDS TOPIC FOLDER
"""

from __future__ import annotations

import sys

from emberq.spark import session


def main() -> None:
    nsqds, topic, folder = sys.argv[1:]
    spark = session("archive", master="local[2,4]", config={"spark.ui.enabled": False, "spark.driver.memory": "512m"})
    query = (
        spark.readStream.format("nsq")
        .options(nsqd=nsqds, topic=topic, maxRowsPerTrigger=5000)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start(f"{folder}/rows")
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
