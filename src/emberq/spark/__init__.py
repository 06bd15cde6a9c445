"""NSQ for Apache Spark, through PySpark: read topics, stream them, write to them.

`pip install emberq[spark]` makes `format("nsq")` known to Spark. `session` makes a SparkSession with settings that suit
it.

    source             format("nsq"): the manual
    error              what can go wrong, as a tree
    schema             the columns that are read and written
    option             the table of options, and the settings they make
    nsqd_http          blocking HTTP to nsqds; which nsqd has which topic
    journal_source     Spark's readers of journals
    journal_plan       how far journals reach, and which ranges a batch reads
    journal_read       reading one range of a journal, in a task or without Spark
    journal_columns    journal batches as Arrow columns
    journal_offset     positions in journals: checkpoints and startingOffsets
    channel_source     Spark's reader of a channel
    channel_receiver   a channel received into a spool on the driver
    channel_spool      the spool: each message stored once, batches read again
    channel_segment    the files of a spool
    channel_frames     message frames as Arrow arrays
    sink               rows written to topics
    java               the Java that Spark runs on, its launcher and class archive
    worker_daemon      PySpark's worker daemon without needless tracebacks
    session            a SparkSession, for programs and for commands
    archive            topics as Parquet files, and back
    sql                SQL over topics and archives
    demo               the check behind `make demo`; the run that loads every class
    pipeline           SQL pipelines from topics to topics and files
"""

from emberq.spark.session import session

__all__ = ["session"]
