"""Tables of a database that get each batch of a query exactly once.

    [sink.totals]
    from = "totals"
    format = "jdbc"
    url = "jdbc:postgresql://127.0.0.1/shop"
    table = "totals"
    user = "shop"
    password_file = "shop.password"
    mode = "upsert"                # or "append", which needs no key
    key = ["page"]

Spark's own writer commits for each partition, so it alone would leave half a batch, or write one twice. Here it writes
to a stage, a table of that attempt, and then the driver moves the rows in one transaction:

    CREATE UNLOGGED TABLE stage       of this attempt
    Spark's tasks write to it         each partition in a transaction of its own
    BEGIN
      emberq_batches: this query has done this batch      nothing changes if it has already, and the rest is left out
      INSERT INTO table SELECT … FROM stage               ON CONFLICT (key) DO UPDATE, to upsert
      DROP TABLE stage
    COMMIT

**Once.** A batch that was committed and is tried again, because the driver died before Spark's checkpoint knew, finds
itself in `emberq_batches` and changes nothing. That table has a row for each query, by the id in its checkpoint, with
the last batch. Two drivers that believe to run the same query meet at that row: one waits for the other, and then has
nothing to do.

**Stages** are real tables, because executors write to them over connections of their own. They are not written ahead to
PostgreSQL's log. A crash of PostgreSQL empties them, so their rows are counted before they are moved. A batch that was
killed leaves its stage behind; the next run of the query drops it.

**Tasks that are tried again** may have committed before they were lost, and then their rows are in the stage twice.
Rows are numbered, and the number tells the partition. PostgreSQL tells with `xmin` which transaction wrote a row. Of
each partition the rows of one transaction count.

**Several rows with one key** in a batch: the last one counts, in the order of the rows.

Java connects, with the driver that Spark's writer uses too. The password is read when a batch begins, and only passed
on to the driver.
"""

# ruff: noqa: S608 - names are quoted, and values are parameters

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from emberq.base.flag import SettingError
from emberq.base.settings import read_secret
from emberq.base.text import quoted
from emberq.spark.error import NsqSparkError
from emberq.spark.pipeline.model import Problem, Sink, WriteMode

DEFAULT_JAR = "/usr/share/java/postgresql.jar"
"""Where Debian's package has it."""
DRIVER = "org.postgresql.Driver"
NO_DRIVER = "apt-get install libpostgresql-jdbc-java, or download postgresql.jar and name it with jar = PATH"

_log = logging.getLogger(__name__)


# SQL.

BATCHES = "emberq_batches"
STAGE = "emberq_stage"
ROW = "_emberq_row"
"""The column of a stage that numbers its rows; the bits above the lower 33 are Spark's number of the partition."""
LOCK_TIMEOUT = "2s"
"""How long a stage that was left behind may be held by a task that still writes to it."""


def quoted_name(*parts: str) -> str:
    """A name in SQL, with the letters that it has."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


class PostgresSql:
    """The statements about one table of PostgreSQL."""

    begin: Sequence[str] = ("SET LOCAL TimeZone TO 'UTC'",)
    """What holds in every transaction: a timestamp without a zone is in UTC."""
    columns = (
        "SELECT attname, format_type(atttypid, -1) FROM pg_attribute"
        " WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    """The columns of a table and their types, without a length: a cast to `varchar(3)` would cut silently."""

    def __init__(self, table: str) -> None:
        """`table` may have its schema before it. Stages and batches are in the same schema."""
        parts = table.split(".")
        self._schema = parts[:-1]
        self.table = quoted_name(*parts)
        self.batches = quoted_name(*self._schema, BATCHES)

    @property
    def create_batches(self) -> Sequence[str]:
        """Two that create the table at the same moment would be in each other's way, also with IF NOT EXISTS."""
        return (
            f"SELECT pg_advisory_xact_lock(hashtext('{BATCHES}'))",
            f"CREATE TABLE IF NOT EXISTS {self.batches} (query text PRIMARY KEY, sink text NOT NULL,"
            " batch bigint NOT NULL, row_count bigint NOT NULL, finished_at timestamptz NOT NULL)",
        )

    @property
    def is_done(self) -> str:
        return f"SELECT batch FROM {self.batches} WHERE query = ? AND batch >= ?"

    @property
    def take_batch(self) -> str:
        """Changes one row, or none if the batch is done. Another run at the same batch waits for this one."""
        return (
            f"INSERT INTO {self.batches} AS known (query, batch, sink, row_count, finished_at)"
            " VALUES (?, ?, ?, ?, now()) ON CONFLICT (query) DO UPDATE SET batch = excluded.batch,"
            " sink = excluded.sink, row_count = excluded.row_count, finished_at = excluded.finished_at"
            " WHERE known.batch < excluded.batch"
        )

    def stage_name(self, query: str, attempt: str) -> str:
        """The stage of an attempt at a batch, not quoted."""
        return f"{STAGE}_{query.replace('-', '')}_{attempt}"

    def beside(self, name: str) -> str:
        """A table in the schema of this one."""
        return quoted_name(*self._schema, name)

    @property
    def stages(self) -> str:
        """The stages whose names begin with a text."""
        return (
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname, ?) AND relnamespace ="
            " (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(?))"
        )

    def create_stage(self, stage: str, columns: str) -> str:
        return f"CREATE UNLOGGED TABLE {stage} ({columns})"

    def create_table(self, stage: str, columns: Sequence[str], key: Sequence[str]) -> Sequence[str]:
        """A table of the columns of a stage."""
        create = f"CREATE TABLE {self.table} AS SELECT {_list(columns)} FROM {stage} WITH NO DATA"
        return [create, f"ALTER TABLE {self.table} ADD PRIMARY KEY ({_list(key)})"] if key else [create]

    def count(self, stage: str) -> str:
        """How many rows of a stage are to be moved."""
        return f"SELECT count(*) FROM {stage} WHERE {_written_once(stage)}"

    def move(self, stage: str, types: Mapping[str, str], key: Sequence[str]) -> str:
        """From the stage to the table. Casts let text become what PostgreSQL can read in it: JSON, UUIDs, enums."""
        columns, known_by = _list(types), _list(key)
        cast = ", ".join(f"CAST({quoted_name(name)} AS {kind}) AS {quoted_name(name)}" for name, kind in types.items())
        rows = f"(SELECT {cast}, {ROW} FROM {stage} WHERE {_written_once(stage)}) AS staged"
        insert = f"INSERT INTO {self.table} ({columns}) SELECT"
        if not key:
            return f"{insert} {columns} FROM {rows}"
        changed = [f"{quoted_name(name)} = excluded.{quoted_name(name)}" for name in types if name not in key]
        then = f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING"
        return (
            f"{insert} DISTINCT ON ({known_by}) {columns} FROM {rows} ORDER BY {known_by}, {ROW} DESC"
            f" ON CONFLICT ({known_by}) DO {then}"
        )


def _list(columns: Iterable[str]) -> str:
    return ", ".join(map(quoted_name, columns))


def _written_once(stage: str) -> str:
    """The condition for the rows of one transaction for each partition."""
    partition = f"{ROW} >> 33"
    return f"({partition}, xmin::text) IN (SELECT {partition}, min(xmin::text) FROM {stage} GROUP BY 1)"


# Connections.


class JavaConnection:
    """A connection of Java's driver. Everything is one transaction until `commit`, which begins the next."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        connection.setAutoCommit(False)

    def execute(self, sql: str, *values: str | int) -> int:
        """How many rows a statement has changed."""
        with self._prepared(sql, values) as statement:
            has_rows: bool = statement.execute()
            return 0 if has_rows else int(statement.getUpdateCount())

    def rows(self, sql: str, *values: str | int) -> list[tuple[str, ...]]:
        """The rows of a query, as text."""
        found = []
        with self._prepared(sql, values) as statement:
            result = statement.executeQuery()
            width = result.getMetaData().getColumnCount()
            while result.next():
                found.append(tuple(str(result.getString(number)) for number in range(1, width + 1)))
        return found

    def commit(self) -> None:
        self._connection.commit()

    def roll_back(self) -> None:
        self._connection.rollback()

    @contextmanager
    def _prepared(self, sql: str, values: Sequence[str | int]) -> Iterator[Any]:
        statement = self._connection.prepareStatement(sql)
        try:
            for number, value in enumerate(values, start=1):
                statement.setObject(number, value)
            yield statement
        finally:
            statement.close()


def problems_with(name: str, sink: Sink, schema: StructType, spark: SparkSession) -> Iterator[Problem]:
    """What keeps these rows from a database, as far as it can be told without asking the database."""
    path = ("sink", name)
    missing = [column for column in sink.key if column not in schema.names]
    if missing:
        where = f"{sink.view} has the columns {', '.join(schema.names)}"
        yield Problem((*path, "key"), f"there is no column {', '.join(missing)}", where)
    for field in schema.fields:
        if _is_nested(field.dataType):
            kind = field.dataType.simpleString().partition("<")[0].upper()
            remedy = f"make text of it in a view: to_json({field.name}) AS {field.name}"
            yield Problem(path, f"{field.name} is a {kind}, which no column of a database can be", remedy)
    try:
        password_of(sink)
    except SettingError as wrong:
        yield Problem((*path, "password_file" if sink.password_file else "password_env"), str(wrong))
    if sink.jar and not Path(sink.jar).is_file():
        yield Problem((*path, "jar"), f"there is no file {sink.jar}", NO_DRIVER)
    elif not sink.jar and not _has_driver(spark) and not Path(DEFAULT_JAR).is_file():
        yield Problem(path, "there is no driver for PostgreSQL on this machine", NO_DRIVER)


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, StructType | MapType) or (isinstance(kind, ArrayType) and _is_nested(kind.elementType))


def password_of(sink: Sink) -> str:
    """The password; empty if the sink names none. SettingError if it is not where the sink says."""
    if sink.password_env:
        if not os.environ.get(sink.password_env):
            raise SettingError(f"the environment has no variable {sink.password_env}, or it is empty")
        return os.environ[sink.password_env]
    flag = "password_file"
    try:
        return read_secret(sink.password_file, flag=flag, variable="").decode()
    except SettingError as wrong:
        raise SettingError(str(wrong).removeprefix(f"--{flag}: ")) from wrong


def _class_loader(spark: SparkSession) -> Any:
    java_session: Any = spark._jsparkSession
    return java_session.sharedState().jarClassLoader()


def _has_driver(spark: SparkSession) -> bool:
    try:
        _class_loader(spark).loadClass(DRIVER)
    except Py4JJavaError:
        return False
    return True


def _load_driver(spark: SparkSession, jar: str) -> None:
    """Give Spark the driver, here and on its executors, unless it has one."""
    if not _has_driver(spark):
        java_session: Any = spark._jsparkSession
        java_session.sessionState().resourceLoader().addJar(jar or DEFAULT_JAR)


# The sink.


class DatabaseTable:
    """The table that one query writes to. Owned by the query's thread on the driver."""

    def __init__(self, sink: Sink, *, name: str) -> None:
        """`name` is that of the query, for those who look at the database."""
        self._sink = sink
        self._name = name
        self._sql = PostgresSql(sink.table)
        self._is_first_batch = True
        """Only the first batch of a run can have been tried before."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write one batch; for foreachBatch."""
        spark = rows.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        options = self._options()
        is_first, self._is_first_batch = self._is_first_batch, False
        if is_first:
            _load_driver(spark, self._sink.jar)
        with self._connected(spark, options) as database:
            if is_first and self._has_done(database, query, batch_id):
                rows.write.format("noop").mode("overwrite").save()  # Spark wants to see the state of the batch anyway
                return
            stage = self._sql.beside(self._sql.stage_name(query, secrets.token_hex(4)))
            count = self._fill(stage, rows, database, options)
            if database.execute(self._sql.take_batch, query, batch_id, self._name, count):
                self._move(stage, rows.columns, count, database)
                database.commit()
            else:
                _log.warning("%s: batch %d was written by another run meanwhile", self._name, batch_id)
                database.roll_back()

    def _options(self) -> dict[str, str]:
        """What Spark's writer and the driver are told. The latter gets those that Spark does not know."""
        sink = self._sink
        given = {"user": sink.user, "password": password_of(sink)}
        defaults = {"ApplicationName": f"emberq {self._name}", "reWriteBatchedInserts": "true", "tcpKeepAlive": "true"}
        return defaults | dict(sink.options) | {key: text for key, text in given.items() if text}

    @contextmanager
    def _connected(self, spark: SparkSession, options: Mapping[str, str]) -> Iterator[JavaConnection]:
        jvm: Any = spark._jvm
        loader = _class_loader(spark)
        jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)  # Spark's writer looks for the driver there
        properties = jvm.java.util.Properties()
        for key, text in options.items():
            properties.setProperty(key, text)
        connection = loader.loadClass(DRIVER).newInstance().connect(self._sink.url, properties)
        try:
            yield JavaConnection(connection)
        finally:
            connection.close()

    def _has_done(self, database: JavaConnection, query: str, batch_id: int) -> bool:
        """Whether an earlier run has written a batch. What that run has left behind is removed."""
        for statement in self._sql.create_batches:
            database.execute(statement)
        database.commit()
        found = database.rows(self._sql.stages, self._sql.stage_name(query, ""), self._sql.batches)
        for (stage,) in found:
            self._remove(self._sql.beside(stage), database)
        return bool(database.rows(self._sql.is_done, query, batch_id))

    def _remove(self, stage: str, database: JavaConnection) -> None:
        try:
            database.execute(f"SET LOCAL lock_timeout TO '{LOCK_TIMEOUT}'")
            database.execute(f"DROP TABLE IF EXISTS {stage}")
            database.commit()
        except Py4JJavaError as failure:
            database.roll_back()
            _log.info("%s: the table %s is left for the next run: %s", self._name, stage, failure.java_exception)

    def _fill(self, stage: str, rows: DataFrame, database: JavaConnection, options: Mapping[str, str]) -> int:
        """Write rows to a new stage; how many."""
        numbered = rows.withColumn(ROW, F.monotonically_increasing_id())
        database.execute(self._sql.create_stage(stage, _columns(numbered, self._sink.url)))
        database.commit()
        counted = Observation()
        observed = numbered.observe(counted, F.count(F.lit(1)).alias("rows"))
        writer = observed.write.format("jdbc").mode("append").options(**options)
        writer.options(url=self._sink.url, dbtable=stage, driver=DRIVER).save()
        count: int = counted.get["rows"]
        return count

    def _move(self, stage: str, columns: Sequence[str], count: int, database: JavaConnection) -> None:
        sql, key = self._sql, self._sink.key if self._sink.mode is WriteMode.UPSERT else ()
        for statement in sql.begin:
            database.execute(statement)
        ((staged,),) = database.rows(sql.count(stage))
        if int(staged) != count:
            raise NsqSparkError(f"{stage} has {staged} of {count} rows: PostgreSQL has crashed since they were written")
        if not database.rows(sql.columns, sql.table):
            for statement in sql.create_table(stage, columns, key):
                database.execute(statement)
        known = {row[0]: row[1] for row in database.rows(sql.columns, sql.table)}
        missing = [column for column in columns if column not in known]
        if missing:
            raise NsqSparkError(
                f"table {self._sink.table} has no column {', '.join(map(quoted, missing))}; it has {', '.join(known)}"
            )
        database.execute(sql.move(stage, {column: known[column] for column in columns}, key))
        database.execute(f"DROP TABLE {stage}")


def _columns(rows: DataFrame, url: str) -> str:
    """The columns of a table for these rows, in SQL, as Spark's writer would create it."""
    jvm: Any = rows.sparkSession._jvm
    java_rows: Any = rows._jdf
    dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(url)
    utils = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
    return str(utils.schemaString(dialect, java_rows.schema(), True, jvm.scala.Option.empty()))
