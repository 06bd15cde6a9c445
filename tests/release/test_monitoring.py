"""Alert rules and dashboards: whatever they name is exported by the daemons, as a real scrape of each shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from emberq.admin.rule import BUILT_IN, prometheus_rules
from emberq.embedded import EmbeddedThread
from emberq.spark.pipeline.report import FAMILIES as OF_PIPELINES
from tests.support.admin_rig import of_cluster
from tests.support.http_client import HttpClient

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/emberq.rules.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
PARTS = ("nsqd", "nsqlookupd", "nsqadmin", "pipelines")
METRIC = re.compile(r"\b(?:nsqd|nsqlookupd|nsqadmin|emberq_pipeline|process)_[a-z0-9_]+")
HISTOGRAM = re.compile(r"_(?:bucket|sum|count)$")
COLUMNS = 24
"""Of Grafana's grid."""


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """What each daemon says that it has, in a scrape of a running one; pipelines need Spark to run."""
    with EmbeddedThread(nsqd_count=1) as nsq, of_cluster(nsq) as admin:
        answers = [_scrape(address) for address in (*nsq.nsqd_http_addresses, *nsq.lookupd_http_addresses)]
        answers.append(admin.get("/metrics").text)
    found = {line.split()[2] for answer in answers for line in answer.splitlines() if line.startswith("# TYPE ")}
    for answer in answers:
        assert list(text_string_to_metric_families(answer))
    return found | {family.name for family in OF_PIPELINES}


def _scrape(address: str) -> str:
    host, _, port = address.rpartition(":")
    return HttpClient((host, int(port))).get("/metrics").text


def _unknown(queries: list[str], exported: set[str]) -> set[str]:
    named = {name for query in queries for name in METRIC.findall(query)}
    return {name for name in named if name not in exported and HISTOGRAM.sub("", name) not in exported}


def _queries(node: Any) -> list[str]:
    """Every query of a dashboard, wherever it stands."""
    if isinstance(node, list):
        return [found for item in node for found in _queries(item)]
    if isinstance(node, dict):
        own = [node[key] for key in ("expr", "query") if isinstance(node.get(key), str)]
        return own + [found for item in node.values() for found in _queries(item)]
    return []


def test_the_alert_rules_name_what_is_exported(exported: set[str]) -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert [group["name"] for group in groups] == ["nsq", *PARTS]
    assert groups[0] == yaml.safe_load(prometheus_rules(BUILT_IN))["groups"][0]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert METRIC.search(rule["expr"]), rule["alert"]
    assert _unknown([rule["expr"] for rule in rules], exported) == set()


def test_prometheus_takes_the_alert_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool, which Debian has in the package prometheus")
    checked = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_names_what_is_exported_and_its_panels_do_not_overlap(path: Path, exported: set[str]) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == path.stem
    assert _unknown(_queries(dashboard), exported) == set()
    assert len(dashboard["panels"]) >= 10
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        across, down = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        own = {(x, y) for x in across for y in down}
        assert max(across) < COLUMNS
        assert not own & cells, panel["title"]
        cells |= own


def test_there_is_a_dashboard_for_each() -> None:
    assert {path.stem for path in DASHBOARDS} == {f"emberq-{part}" for part in PARTS}
