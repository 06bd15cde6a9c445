"""GET /metrics, read by Prometheus's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.support.lookupd_harness import NODE, LookupdHarness

Samples = dict[str, float]


def scrape(lookupd: LookupdHarness) -> Samples:
    """Every sample: name and labels to value."""
    return {
        sample.name + "".join(f" {label}={value}" for label, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(lookupd.get("/metrics").text)
        for sample in family.samples
    }


def test_it_is_text_as_prometheus_expects_it(lookupd: LookupdHarness) -> None:
    answer = lookupd.get("/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    names = [family.name for family in text_string_to_metric_families(answer.text)]
    assert len(names) == len(set(names))


def test_it_counts_what_the_registry_holds(lookupd: LookupdHarness) -> None:
    silent = lookupd.nsqd("t", "u", broadcast_address="silent")
    lookupd.advance(ms=300_001)
    nsqd = lookupd.nsqd("t")
    nsqd.register("v", "c")
    nsqd.register("v", "d")
    lookupd.connect().ping()
    lookupd.post(f"/topic/tombstone?topic=v&node={NODE}")
    samples = scrape(lookupd)
    assert samples["nsqlookupd_topics"] == 3
    assert samples["nsqlookupd_channels"] == 2
    assert samples["nsqlookupd_producers"] == 2
    assert samples["nsqlookupd_active_producers"] == 1
    assert samples["nsqlookupd_topic_registrations"] == 4
    assert samples["nsqlookupd_tombstones"] == 1
    assert samples["nsqlookupd_connections protocol=tcp"] == 3
    assert samples["nsqlookupd_connections protocol=http"] == 1
    silent.ping()
    lookupd.advance(ms=45_000)
    samples = scrape(lookupd)
    assert (samples["nsqlookupd_active_producers"], samples["nsqlookupd_tombstones"]) == (2, 0)


def test_it_tells_how_the_process_is_doing(lookupd: LookupdHarness) -> None:
    samples = scrape(lookupd)
    assert samples["nsqlookupd_start_time_seconds"] == 1_700_000_000
    assert samples["process_cpu_seconds_total"] > 0
    assert 0 < samples["process_open_fds"] < samples["process_max_fds"]
    assert samples["process_resident_memory_bytes"] > 1_000_000
    assert samples["nsqlookupd_loop_lag_max_seconds"] >= 0
    (info,) = (name for name in samples if name.startswith("nsqlookupd_info "))
    assert "version=1.3.0-emberq emberq_version=0.1.0 python_version=3." in info
