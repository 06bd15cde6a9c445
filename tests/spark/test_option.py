from __future__ import annotations

import pytest

from emberq.spark.error import OptionError
from emberq.spark.journal_offset import Edge, Moment, Named, Place, parse_start
from emberq.spark.option import Mode, SinkSettings, SourceSettings, Use, parse_options

NSQD = {"nsqd": "127.0.0.1:4151"}


def test_options_have_defaults_and_do_not_care_about_case() -> None:
    settings = SourceSettings.of({"NSQD": "a:1, http://b:2/", "Topic": "x,y,x", "maxrowspertrigger": "5"}, Use.STREAM)
    assert settings.access.nsqds == ("a:1", "http://b:2")
    assert settings.topics == ("x", "y")
    assert (settings.max_rows_per_trigger, settings.mode, settings.start) == (5, Mode.AUTO, Edge.EARLIEST)
    assert (settings.fail_on_data_loss, settings.access.request_timeout_s) == (True, 30.0)


@pytest.mark.parametrize(
    ("given", "use", "complaint"),
    [
        ({"topci": "x"}, Use.STREAM, 'unknown option "topci"; did you mean "topic"?'),
        ({"Archive": "x"}, Use.BATCH, "emberq.spark.read_topic(spark, options, archive=PATH)"),
        ({"zzz": "x"}, Use.SINK, 'unknown option "zzz"; there are: authSecret, '),
        ({"endingOffsets": "latest"}, Use.STREAM, 'option "endingOffsets" has no meaning for a stream'),
        ({"startingOffsets": "latest"}, Use.SINK, 'option "startingOffsets" has no meaning for writing'),
        ({"nsqd": "localhost"}, Use.BATCH, 'option "nsqd": "localhost" is not of the form host:port'),
        ({"topic": "a b"}, Use.BATCH, 'option "topic": "a b" is not a name that NSQ allows'),
        ({"topicPattern": "("}, Use.BATCH, 'option "topicPattern": it is not a regular expression'),
        ({"mode": "both"}, Use.BATCH, '"both" is not one of auto, journal, channel'),
        ({"maxRowsPerTrigger": "0"}, Use.STREAM, '"0" is not a whole number from 1 on'),
        ({"failOnDataLoss": "no"}, Use.STREAM, '"no" is neither true nor false'),
        ({"requestTimeout": "5"}, Use.STREAM, '"5" is not a duration such as 500ms'),
        ({"startingOffsets": "yesterday"}, Use.BATCH, "neither earliest, latest, a time nor JSON"),
        ({"startingOffsets": "2025-01-31T12:00:00"}, Use.BATCH, "has no time zone"),
        ({"startingOffsets": '{"a:1": 5}'}, Use.BATCH, 'at "a:1": expected an object'),
        ({"startingOffsets": '{"a:1": {"t": -1}}'}, Use.BATCH, "an offset is a whole number from 0 on"),
        ({"startingOffsets": '{"a:1"'}, Use.BATCH, "the JSON is not valid"),
    ],
)
def test_a_mistake_is_named_with_its_option(given: dict[str, str], use: Use, complaint: str) -> None:
    with pytest.raises(OptionError) as failure:
        parse_options(given, use)
    assert complaint in str(failure.value)


def test_what_is_meant_for_spark_itself_is_left_to_it() -> None:
    assert SinkSettings.of({**NSQD, "checkpointLocation": "/tmp/x", "queryName": "q"}).topic is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (NSQD, 'either "topic" or "topicPattern" says what to read: neither is given'),
        ({**NSQD, "topic": "t", "topicPattern": "t"}, "both are given"),
        ({"topic": "t"}, 'either "nsqd" (HTTP addresses such as 127.0.0.1:4151) or "lookupd"'),
        ({**NSQD, "lookupd": "127.0.0.1:4161", "topic": "t"}, "both are given"),
    ],
)
def test_options_that_exclude_or_need_each_other_are_told(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError) as failure:
        SourceSettings.of(given, Use.BATCH)
    assert complaint in str(failure.value)


def test_a_start_is_an_edge_a_moment_or_offsets() -> None:
    assert parse_start("Latest") is Edge.LATEST
    assert parse_start("1970-01-02T01:00:00.000001+01:00") == Moment(86_400_000_001_000)
    uuid = "0b5f6a52-0000-4000-8000-000000000001"
    offsets = parse_start(f'{{"a:1": {{"t": 5, "u": {{"journal": "{uuid}", "offset": 6}}}}}}')
    assert offsets == {Place("a:1", "t"): Named(5), Place("a:1", "u"): Named(6, uuid)}


def test_a_secret_is_not_shown() -> None:
    settings = SinkSettings.of({**NSQD, "authSecret": "hush", "lookupdSecret": "hush2"})
    assert (settings.access.auth_secret, settings.access.lookupd_secret) == ("hush", "hush2")
    assert "hush" not in repr(settings)


def test_nsqlookupds_are_shown_the_secret_of_nsqds_if_they_have_none() -> None:
    assert SinkSettings.of({**NSQD, "authSecret": "hush"}).access.lookupd_secret == "hush"
    assert SinkSettings.of(NSQD).access.lookupd_secret is None
