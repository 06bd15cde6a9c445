"""What runs emberq elsewhere: image, compose file, manifests for Kubernetes, units for systemd.

No container engine and no cluster is needed. Files are held against the schemas of those who read them, the flags in
them are given to the daemons, and the health check of the image is run against a real nsqd.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from emberq import __version__
from emberq.cli import daemons
from emberq.embedded import EmbeddedThread
from tests.support.command import require_command
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml")
OBJECTS = [found for path in MANIFESTS for found in yaml.safe_load_all(path.read_text())]
WORKLOADS = [found for found in OBJECTS if found["kind"] in {"StatefulSet", "Deployment"}]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MAX_EXPOSURE = 15
"""Of 100, as systemd-analyze counts. What is left is mostly that these are servers, with access to the network."""

Check = Callable[[Sequence[str]], str]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Have a daemon read a command line as it would at its start; what it says about it."""

    def check(words: Sequence[str]) -> str:
        run = {"nsqd": daemons.nsqd, "nsqlookupd": daemons.nsqlookupd, "nsqadmin": daemons.nsqadmin}[words[0]]
        run([*words[1:], "--check-config"])
        told = capsys.readouterr()
        assert told.err == "", words
        return told.out

    return check


def name_of(found: Any) -> str:
    return f"{found['kind']}-{found['metadata']['name']}"


def instructions(name: str) -> list[str]:
    """What stands behind an instruction of the Dockerfile, each time it occurs."""
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


def test_the_image_runs_nsqd_as_a_user_without_rights(check: Check) -> None:
    user, group = instructions("USER")[-1].split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert "TCP 0.0.0.0:4150" in check(json.loads(instructions("CMD")[-1]))
    assert instructions("VOLUME") == ["/data"]


def test_the_image_is_built_of_files_that_are_there_and_not_ignored() -> None:
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    let_in = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert sorted(let_in) == sorted(copied)


def test_the_commands_are_also_where_the_go_image_has_them() -> None:
    (linked,) = re.findall(r"for command in ([a-z_ ]+);", DOCKERFILE)
    scripts = re.findall(r"^(nsq\w*|to_nsq) = ", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert sorted(linked.split()) == sorted(scripts)


def test_the_health_check_of_the_image_tells_whether_nsqd_is_well() -> None:
    (line,) = (found for found in instructions("HEALTHCHECK"))
    words = json.loads(line[line.index("CMD ") + 4 :])
    assert words[0] == "python"

    def status(url: str) -> int:
        environment = os.environ | {"EMBERQ_PING": url}
        done = subprocess.run(
            (sys.executable, *words[1:]), env=environment, stderr=subprocess.DEVNULL, timeout=PATIENCE_S, check=False
        )
        return done.returncode

    with EmbeddedThread() as nsq:
        (address,) = nsq.nsqd_http_addresses
        assert status(f"http://{address}/ping") == 0
        assert status(f"http://{address}/no-such-page") == 1
    assert status(f"http://{address}/ping") == 1


def test_the_compose_file_is_one() -> None:
    check_schema("vendor.compose-spec", DEPLOY / "compose.yaml")


def check_schema(name: str, *paths: Path) -> None:
    """Hold files against a schema that check-jsonschema brings."""
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", name, *map(str, paths))
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_is_closed_to_other_machines_and_may_do_little(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["logging"]["options"]["max-size"]


def test_each_nsqd_has_a_volume_of_its_own() -> None:
    mounted = [service["volumes"] for name, service in COMPOSE["services"].items() if name.startswith("nsqd-")]
    assert mounted == [[f"{volume}:/data"] for volume in COMPOSE["volumes"]]
    assert len(mounted) == 3


@pytest.mark.parametrize("found", OBJECTS, ids=name_of)
def test_a_manifest_fits_its_schema(found: Any) -> None:
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def test_kustomize_is_given_every_manifest() -> None:
    assert sorted(kustomization()["resources"]) == [path.name for path in MANIFESTS]


def kustomization() -> Any:
    return yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_a_pod_has_probes_and_no_rights(workload: Any) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == instructions("USER")[-1]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ports = {port["name"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_services_and_budgets_find_the_pods(workload: Any) -> None:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    of_it = [found for found in OBJECTS if found["metadata"]["labels"] == workload["metadata"]["labels"]]
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for service in (found for found in of_it if found["kind"] == "Service"):
        assert service["spec"]["selector"] == labels
        assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    budgets = [found for found in of_it if found["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == (workload["spec"]["replicas"] > 1)
    assert all(budget["spec"]["selector"]["matchLabels"] == labels for budget in budgets)


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_the_daemons_of_the_manifests_take_their_flags(workload: Any, check: Check) -> None:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    known = {variable["name"] for variable in container.get("env", ())}
    words = container["args"]
    assert {name for word in words for name in re.findall(r"\$\((\w+)\)", word)} == known
    assert f"HTTP 0.0.0.0:{ports_of(workload)['http']}" in check(
        [word.replace("$(", "").replace(")", "") for word in words]
    )


def ports_of(workload: Any) -> dict[str, int]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_every_nsqlookupd_is_told_to_nsqd_and_nsqadmin() -> None:
    by_name = {workload["metadata"]["name"]: workload for workload in WORKLOADS}
    lookupd = by_name["nsqlookupd"]
    hosts = [f"nsqlookupd-{number}.{lookupd['spec']['serviceName']}" for number in range(lookupd["spec"]["replicas"])]
    for name, kind in (("nsqd", "tcp"), ("nsqadmin", "http")):
        (container,) = by_name[name]["spec"]["template"]["spec"]["containers"]
        told = [word.partition("=")[2] for word in container["args"] if word.startswith("--lookupd-")]
        assert told == [f"{host}:{ports_of(lookupd)[kind]}" for host in hosts]


def test_compose_file_and_manifests_run_this_version() -> None:
    assert {service["image"] for service in COMPOSE["services"].values()} == {f"emberq:{__version__}"}
    (image,) = kustomization()["images"]
    assert image == {"name": "emberq", "newTag": __version__}
    assert {container["image"] for w in WORKLOADS for container in w["spec"]["template"]["spec"]["containers"]} == {
        "emberq"
    }


@pytest.fixture(scope="module")
def installed_units(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The units, of an installation that is there."""
    require_command("systemd-analyze")
    folder = tmp_path_factory.mktemp("systemd")
    (folder / "bin").mkdir()
    units = []
    for unit in UNITS:
        shutil.copy("/bin/true", folder / "bin" / unit.stem)
        copied = folder / unit.name
        copied.write_text(unit.read_text().replace("/opt/emberq/bin", str(folder / "bin")))
        units.append(copied)
    return units


def test_systemd_understands_the_units(installed_units: list[Path]) -> None:
    done = analyze("verify", "--man=no", *map(str, installed_units))
    ours = [line for line in done.stderr.splitlines() if any(unit.name in line for unit in installed_units)]
    assert ours == []


def test_systemd_finds_little_that_the_units_may_do(installed_units: list[Path]) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", *map(str, installed_units))
    assert done.returncode == 0, done.stdout


def test_systemd_makes_the_user_of_the_units(tmp_path: Path) -> None:
    require_command("systemd-sysusers")
    users = {user for unit in UNITS for user in re.findall(r"^User=(.*)$", unit.read_text(), re.MULTILINE)}
    command = ("systemd-sysusers", "--dry-run", f"--root={tmp_path}", str(DEPLOY / "systemd" / "nsq.sysusers.conf"))
    (tmp_path / "etc").mkdir()
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert set(re.findall("Creating user '(.*?)'", done.stdout + done.stderr)) == users


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    command = ("systemd-analyze", "--no-pager", *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_its_daemon_with_settings_that_it_knows(unit: Path, tmp_path: Path, check: Check) -> None:
    (line,) = re.findall(r"^ExecStart=/opt/emberq/bin/(.*)$", unit.read_text(), re.MULTILINE)
    line = line.replace("/etc/nsq", str(unit.parent)).replace("${STATE_DIRECTORY}", str(tmp_path))
    words = line.split()
    assert words[0] == unit.stem
    assert re.search(r"^HTTP \S+:\d+", check(words), re.MULTILINE)


def test_nsqd_sees_under_systemd_which_boot_this_is() -> None:
    """Without it, nsqd could not trust what a crash of its own left in the page cache."""
    assert not re.search("^ProcSubset=", (DEPLOY / "systemd" / "nsqd.service").read_text(), re.MULTILINE)
