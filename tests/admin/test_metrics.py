"""nsqadmin's own /metrics, as Prometheus reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emberq.admin.metrics import FAMILIES
from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, basic, user_file
from tests.support.embedded import create

GUIDE = Path(__file__).parents[2] / "docs/ADMIN.md"


def samples(admin: AdminThread, **headers: str) -> dict[str, float]:
    answer = admin.get("/metrics", **headers)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_what_it_knows_and_does_is_counted(start_admin: StartAdmin, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "c")
    admin = start_admin()
    before = samples(admin)
    assert before['nsqadmin_nodes{state="present"}'] == 0  # it has not looked yet
    with admin.events("view=topics") as events:
        events.next()
        now = samples(admin)
    assert now['nsqadmin_nodes{state="present"}'] == 2
    assert (now['nsqadmin_nodes{state="silent"}'], now['nsqadmin_nodes{state="gone"}']) == (0, 0)
    assert (now["nsqadmin_topics"], now["nsqadmin_channels"], now["nsqadmin_live_viewers"]) == (1, 1, 1)
    assert now['nsqadmin_rounds_total{result="done"}'] >= 1
    assert now["nsqadmin_round_seconds_total"] > 0
    assert now['nsqadmin_alerts{rule="Node gone",severity="critical"}'] == 0
    assert now['nsqadmin_webhook_messages_total{result="taken"}'] == 0
    assert admin.get("/api/view?view=none").status == 400
    later = samples(admin)
    assert later['nsqadmin_http_requests_total{status="400"}'] == 1
    assert later['nsqadmin_http_requests_total{status="200"}'] > now['nsqadmin_http_requests_total{status="200"}']


def test_where_users_log_in_it_is_closed_as_all_else(start_admin: StartAdmin, tmp_path: Path) -> None:
    users = user_file(tmp_path, {"prometheus": ("viewer", "secret")})
    admin = start_admin(user_file=str(users))
    assert admin.get("/metrics").status == 401
    assert samples(admin, Authorization=basic("prometheus", "secret"))["nsqadmin_topics"] == 0


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_name_follows_prometheus(family: object) -> None:
    name, kind, meaning = (getattr(family, each) for each in ("name", "kind", "meaning"))
    assert name.startswith(("nsqadmin_", "process_"))
    assert name.endswith("_total") == (kind == "counter")
    assert meaning.endswith(".")


def test_the_guide_lists_every_metric_and_no_other() -> None:
    listed = re.findall(r"^\| `(nsqadmin_[a-z0-9_]+)", GUIDE.read_text(), re.MULTILINE)
    assert listed == [family.name for family in FAMILIES if family.name.startswith("nsqadmin_")]
