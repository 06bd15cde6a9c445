"""The clickstream example step by step, as one would write it in a notebook: plain PySpark with format("nsq").

Run it beside `emberq up` and something that publishes to the topic clicks; it reads what is there and ends.
"""

import sys

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from emberq.spark import session

nsqd = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4151"
folder = sys.argv[2] if len(sys.argv) > 2 else "clickstream-data"

# %% A session: Java is found, or comes with emberq[spark].
spark = session("clickstream")

# %% The topic as a table: one row for each message.
messages = spark.read.format("nsq").option("nsqd", nsqd).option("topic", "clicks").load()
messages.printSchema()

# %% The body is JSON; what does not fit the schema becomes null.
schema = "id STRING, user STRING, page STRING, at TIMESTAMP"
clicks = messages.select(F.from_json(F.col("body").cast("string"), schema).alias("click")).select("click.*")
clicks.where("page IS NOT NULL").groupBy("page").count().orderBy(F.desc("count")).show()

# %% The same as a stream: read what is there, remember how far, write files.
stream = spark.readStream.format("nsq").option("nsqd", nsqd).option("topic", "clicks").load()
visits = (
    stream.select(F.from_json(F.col("body").cast("string"), schema).alias("click"))
    .select("click.*")
    .where("at IS NOT NULL")
)
query = (
    visits.writeStream.format("parquet")
    .option("path", f"{folder}/visits")
    .option("checkpointLocation", f"{folder}/visits-checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(spark.read.parquet(f"{folder}/visits").count(), "visits in files")

# %% Back into a topic: a count for each page, as JSON.
counts = clicks.where("page IS NOT NULL").groupBy("page").count().select(F.to_json(F.struct("*")).alias("body"))
counts.write.format("nsq").mode("append").option("nsqd", nsqd).option("topic", "clicks.per-page").save()
spark.stop()
