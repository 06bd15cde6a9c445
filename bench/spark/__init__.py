"""NSQ and Spark: how fast topics become rows and rows become messages, beside Spark with files of its own.

    python -m bench.spark

Nothing but Spark itself can be the peer here: the same rows are read from Parquet files and written to Parquet files by
the same session, by turns with ours.
"""
