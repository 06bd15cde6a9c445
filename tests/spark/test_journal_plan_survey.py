"""Looking at journals, and moving the channel that follows a stream, on real nsqds that come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emberq.spark.error import DataLossError, NsqdUnavailableError, OptionError
from emberq.spark.journal_offset import Edge, Moment, Named, Place, Position, Start
from emberq.spark.journal_plan import JournalExtent, JournalSurvey, end_positions, start_positions
from emberq.spark.journal_source import RetentionCursor
from emberq.spark.option import SourceSettings, Use
from tests.spark.conftest import StartNsqd
from tests.support.journal_nsqd import JournalNsqd, JournalNsqdProcess

HERE = Place("a:1", "t")
UUID = "0b5f6a52-0000-4000-8000-000000000001"
JOURNALS = {HERE: JournalExtent(place=HERE, uuid=UUID, first_offset=10, end_offset=20, bytes_per_row=1)}


def survey(*nsqds: str, topic: str = "t") -> JournalSurvey:
    return JournalSurvey(SourceSettings.of({"nsqd": ",".join(nsqds), "topic": topic}, Use.STREAM))


def test_an_nsqd_that_is_away_is_missing_and_back_when_it_is_back(start_journal_nsqd: StartNsqd) -> None:
    first, second = start_journal_nsqd(), start_journal_nsqd()
    for nsqd in (first, second):
        nsqd.publish("t", [b"a", b"b"])
    looking = survey(first.http, second.http)
    assert set(looking.first_look()) == {Place(first.http, "t"), Place(second.http, "t")}
    first.kill()
    assert set(looking.look()) == {Place(second.http, "t")}
    assert looking.every_topic_has_a_journal()
    with pytest.raises(NsqdUnavailableError, match=first.http):
        looking.first_look()
    first.start()
    assert {journal.end_offset for journal in looking.look().values()} == {2}
    assert len(looking.look()) == 2


def test_a_topic_is_gone_when_its_nsqd_says_so_and_not_when_it_is_away(
    start_journal_nsqd: StartNsqd,
) -> None:
    first, second = start_journal_nsqd(), start_journal_nsqd()
    for nsqd in (first, second):
        nsqd.publish("t", [b"a"])
    looking = survey(first.http, second.http)
    positions = {place: Position(journal.uuid, 1) for place, journal in looking.first_look().items()}
    first.post("/topic/delete", topic="t")
    second.kill()
    assert looking.gone(positions, looking.look()) == [Place(first.http, "t")]
    moved = {Place("c:1", "t"): replace(JOURNALS[HERE], uuid=positions[Place(first.http, "t")].journal)}
    assert looking.gone(positions, moved) == []  # it was not deleted, but is elsewhere
    other = survey(first.http, topic="other")
    assert other.gone(positions, other.look()) == []  # not read any more, so not missed


def test_a_journal_under_two_names_is_found_once(nsqd: JournalNsqd, caplog: pytest.LogCaptureFixture) -> None:
    nsqd.publish("t", [b"a"])
    alias = f"localhost:{nsqd.http_port}"
    looking = survey(alias, nsqd.http)
    for _ in range(2):
        assert set(looking.first_look()) == {Place(nsqd.http, "t")}
    assert caplog.text.count(f"topic t on nsqd {alias} is the same journal as that on {nsqd.http}") == 1


def test_which_topics_have_journals_is_told(start_journal_nsqd: StartNsqd) -> None:
    nsqd = start_journal_nsqd("--journal-topic=^kept$")
    for topic in ("kept", "fleeting"):
        nsqd.publish(topic, [b"a"])
    assert survey(nsqd.http, topic="kept").every_topic_has_a_journal()
    assert not survey(nsqd.http, topic="kept,fleeting").every_topic_has_a_journal()
    with pytest.raises(OptionError, match=r"topic fleeting on nsqd .* has no journal"):
        survey(nsqd.http, topic="kept,fleeting").first_look()
    assert survey(nsqd.http, topic="absent").first_look() == {}


def test_the_channel_follows_and_is_not_moved_by_force(killable_nsqd: JournalNsqdProcess) -> None:
    killable_nsqd.publish("t", [b"%d" % number for number in range(10)])
    looking = survey(killable_nsqd.http)
    ((place, journal),) = looking.first_look().items()

    def low_water() -> int:
        (channel,) = killable_nsqd.get("/journal", topic="t")["channels"]
        assert channel["channel_name"] == "spark"
        found: int = channel["low_water"]
        return found

    cursor = RetentionCursor("spark", looking.book)
    cursor.move_to({place: Position(journal.uuid, 3)})
    assert low_water() == 3
    cursor.move_to({place: Position(journal.uuid, 7)})
    assert low_water() == 7
    killable_nsqd.kill()
    cursor.move_to({place: Position(journal.uuid, 8)})
    killable_nsqd.start()
    cursor.move_to({place: Position(journal.uuid, 8)})
    assert low_water() == 8


@pytest.mark.parametrize(
    ("start", "offset"),
    [(Edge.EARLIEST, 10), (Edge.LATEST, 20), ({HERE: Named(15)}, 15), ({HERE: Named(15, UUID)}, 15)],
)
def test_a_start_becomes_an_offset(start: Start, offset: int) -> None:
    expected = {HERE: Position(UUID, offset)}
    assert start_positions(start, JOURNALS, survey("a:1"), fail_on_data_loss=True) == expected
    assert end_positions(start, JOURNALS, survey("a:1")) == expected


def test_a_moment_becomes_the_offset_of_the_next_message(nsqd: JournalNsqd) -> None:
    nsqd.publish("t", [b"a"])
    nsqd.publish("t", [b"b"])
    looking = survey(nsqd.http)
    journals = looking.first_look()
    (shown,) = nsqd.get("/topic/peek", topic="t", offset=1, count=1)["messages"]
    for moment, offset in ((0, 0), (shown["timestamp"] // 1000 * 1000, 1), (shown["timestamp"] + 10**12, 2)):
        (position,) = end_positions(Moment(moment), journals, looking).values()
        assert position.offset == offset


@pytest.mark.parametrize(
    ("start", "kind", "complaint"),
    [
        ({HERE: Named(5)}, DataLossError, "begins at offset 10"),
        ({HERE: Named(21)}, OptionError, "ends at offset 20, before 21"),
        ({HERE: Named(15, UUID.replace("b", "c"))}, DataLossError, "the offset means nothing in it"),
        ({Place("a:1", "x"): Named(15)}, OptionError, "there are: t on a:1"),
    ],
)
def test_offsets_that_are_not_there_are_refused(start: Start, kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        start_positions(start, JOURNALS, survey("a:1"), fail_on_data_loss=True)


def test_a_start_that_is_gone_becomes_the_first_message_if_loss_is_allowed() -> None:
    found = start_positions({HERE: Named(5)}, JOURNALS, survey("a:1"), fail_on_data_loss=False)
    assert found == {HERE: Position(UUID, 10)}


def test_an_end_by_offsets_leaves_out_what_it_does_not_name() -> None:
    assert end_positions({}, JOURNALS, survey("a:1")) == {}
