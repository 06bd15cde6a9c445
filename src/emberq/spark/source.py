"""format("nsq"): NSQ for Spark, to read and to write.

    spark.read.format("nsq").option("nsqd", "127.0.0.1:4151").option("topic", "clicks").load()

    (spark.readStream.format("nsq").option("lookupd", "127.0.0.1:4161").option("topic", "clicks")
        .option("channel", "archive").load()
        .writeStream.format("parquet").option("checkpointLocation", "...").start("..."))

    df.selectExpr("to_json(struct(*)) AS body").write.format("nsq").mode("append")
        .option("nsqd", "127.0.0.1:4151").option("topic", "counts").save()

`schema` describes the rows that are read and those that can be written, `option` what can be set. Mistakes in options
and columns, and servers that do not answer, show before any data moves.
"""

from __future__ import annotations

import sys
from contextlib import closing
from types import TracebackType

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from emberq.spark.channel_source import ChannelStreamReader, is_reader_process
from emberq.spark.error import OptionError, SchemaError
from emberq.spark.journal_plan import JournalSurvey
from emberq.spark.journal_source import JournalBatchReader, JournalStreamReader
from emberq.spark.option import Mode, SinkSettings, SourceSettings, Use, columns_in
from emberq.spark.schema import check_schema, schema_of
from emberq.spark.sink import BatchSink, StreamSink, reachable


class NsqDataSource(DataSource):
    """The data source that Spark knows as `nsq`."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> StructType:
        return schema_of(columns_in(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        settings = self._source_settings(schema, Use.BATCH)
        if _mode(settings) is Mode.CHANNEL:
            raise OptionError(
                "a batch reads journals, and a channel has no end to read to; give the topic a journal (nsqd "
                "--journal-topic), or use readStream"
            )
        return JournalBatchReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name, as are the others
        if is_reader_process():
            sys.excepthook = _quiet_when_spark_hangs_up
        settings = self._source_settings(schema, Use.STREAM)
        if _mode(settings) is Mode.CHANNEL:
            return ChannelStreamReader(settings)
        return JournalStreamReader(settings)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(reachable(self._sink_settings(schema, overwrite=overwrite), timeout_s=0))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        # Spark makes a writer for every micro-batch, and an nsqd that restarts should not end a query.
        settings = self._sink_settings(schema, overwrite=overwrite)
        if settings.write_id is not None:
            raise OptionError('option "writeId" is for batch writes; a stream names its batches by itself')
        return StreamSink(reachable(settings, timeout_s=settings.access.retry_timeout_s))

    def _source_settings(self, schema: StructType, use: Use) -> SourceSettings:
        settings = SourceSettings.of(self.options, use)
        known = schema_of(settings.columns)
        if schema != known:
            raise SchemaError(
                f"messages have the columns {known.simpleString()}; do not give another schema, but parse the column "
                "body, as with from_json"
            )
        return settings

    def _sink_settings(self, schema: StructType, *, overwrite: bool) -> SinkSettings:
        if overwrite:
            raise OptionError('messages cannot be overwritten; use mode("append"), or outputMode("append")')
        settings = SinkSettings.of(self.options)
        check_schema(schema, topic=settings.topic)
        return settings


def _mode(settings: SourceSettings) -> Mode:
    """The mode; `auto` is decided by asking the nsqds."""
    if settings.mode is not Mode.AUTO:
        return settings.mode
    with closing(JournalSurvey(settings)) as survey:
        return Mode.JOURNAL if survey.every_topic_has_a_journal() else Mode.CHANNEL


def _quiet_when_spark_hangs_up(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """An exception hook. Spark ends a query by closing the connection to its reader, which is no error to print."""
    if not issubclass(kind, ConnectionError):
        sys.__excepthook__(kind, error, traceback)
