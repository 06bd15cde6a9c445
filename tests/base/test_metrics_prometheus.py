"""The text format of Prometheus, as it is written and as Prometheus' own parser reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from emberq.base.metrics import Family, counter, gauge, labels, render, single, with_labels

AWKWARD = 'a"b\\c\nd}é#ephemeral'


def test_a_family_is_its_meaning_its_type_and_its_samples() -> None:
    depth: Family[int] = gauge("depth", "Messages waiting.", single(lambda source: source))
    total: Family[int] = counter("messages_total", "Messages ever.", lambda source: [(labels(topic="t"), source * 2)])
    assert render([depth, total], 17) == (
        b"# HELP depth Messages waiting.\n"
        b"# TYPE depth gauge\n"
        b"depth 17\n"
        b"# HELP messages_total Messages ever.\n"
        b"# TYPE messages_total counter\n"
        b'messages_total{topic="t"} 34\n'
    )


def test_a_family_without_samples_is_still_named() -> None:
    assert render([gauge("depth", "Messages waiting.", lambda _: [])], None).endswith(b"# TYPE depth gauge\n")


def test_labels_are_written_in_their_order() -> None:
    assert labels(topic="t", channel="c") == '{topic="t",channel="c"}'
    assert with_labels(labels(topic="t"), channel="c", zone="z") == '{topic="t",channel="c",zone="z"}'


def test_any_value_of_a_label_comes_through_as_it_is() -> None:
    written = with_labels(labels(topic=AWKWARD), channel=AWKWARD)
    text = render([gauge("depth", "Messages waiting.", lambda _: [(written, 1.5)])], None).decode()
    ((sample,),) = (family.samples for family in text_string_to_metric_families(text))
    assert (sample.labels, sample.value) == ({"topic": AWKWARD, "channel": AWKWARD}, 1.5)
