"""The order of the house, read off the files: a module has its tests, a class its name, a docstring its subject."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from quality.twin import ROOT, SOURCE, TESTS, modules, owner, twins

TESTED_ELSEWHERE = {
    # Exceptions: what raises them is tested, and what they say.
    "broker/error.py": "broker/test_broker.py",
    "spark/error.py": "spark/test_option.py",
    "storage/error.py": "storage/test_backend.py",
    # What every route of nsqadmin does with a request, and what holds its parts together: tested through the routes.
    "admin/api/request.py": "admin/api/test_changing.py",
    "admin/daemon.py": "admin/test_routes_hostile.py",
    # How a stream is upgraded: tested over connections, as the contract with NSQ.
    "nsqd/context.py": "conformance/test_tls_and_compression.py",
    # What all calls of the client check: tested with each of the calls.
    "client/argument.py": "client/test_producer.py",
    # It needs a pytest of its own.
    "pytest_plugin.py": "test_embedded.py",
    # Commands that start Spark.
    "cli/archive.py": "spark/pipeline/test_commands.py",
    "cli/demo.py": "spark/test_demo.py",
    "cli/pipeline.py": "spark/pipeline/test_commands.py",
    "cli/prepare_spark.py": "spark_cluster/test_prepare_spark.py",
    "cli/replay.py": "spark/pipeline/test_commands.py",
    "cli/sql.py": "spark/test_sql.py",
    # Steps of one way that a row takes through Spark, tested where it ends.
    "spark/journal_offset.py": "spark/test_journal_plan.py",
    "spark/pipeline/check.py": "spark/pipeline/test_toml_file.py",
    "spark/pipeline/checkpoint.py": "spark/pipeline/test_run.py",
    "spark/pipeline/model.py": "spark/pipeline/test_toml_file.py",
}
"""Modules without a test file of their own, and the one that comes nearest."""

OF_NO_SINGLE_MODULE = {
    "client/test_import.py": "what `import emberq.client` loads",
    "spark/pipeline/test_commands.py": "commands that start Spark; they run with Spark's other tests",
    "spark/pipeline/test_guide.py": "a document, in tests that need Spark",
    "spark/test_bench.py": "a benchmark, in tests that need Spark",
    "test_base_install.py": "the installed package",
    "test_house.py": "all modules",
    "test_other_platforms.py": "all that runs on Windows and macOS",
    "test_public_api.py": "of what is public, over all packages",
    "test_import_directions.py": "all modules",
}

SHARED_CLASS_NAMES = {
    "Consumer": "`emberq.sync` offers the client's classes to code that blocks, under their names",
    "Producer": "as Consumer",
    "Java": "Py4J finds the interfaces of a listener in a nested class of this name",
}

MODULE_LIMIT = 252
"""As many as there are. A new one needs a reason that stands in its first sentence."""

VAGUE = re.compile(r"\b(nobody|somebody|whoever|everybody|anybody)\b", re.IGNORECASE)
VAGUE_LIMIT = 9
"""How often docstrings and comments still use such a word. The number only falls."""


def test_every_module_has_its_test_at_the_same_path() -> None:
    known = modules()
    tested = {owner(test, known) for test in twins()}
    without = {str(module) for module in known if module not in tested}
    assert without == set(TESTED_ELSEWHERE)


def test_what_is_tested_elsewhere_is_tested_somewhere() -> None:
    assert [test for test in TESTED_ELSEWHERE.values() if not (TESTS / test).is_file()] == []


def test_every_test_file_belongs_to_a_module() -> None:
    known = modules()
    strays = {str(test) for test in twins() if owner(test, known) is None}
    assert strays == set(OF_NO_SINGLE_MODULE)


def test_a_class_name_occurs_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert repeated.keys() == SHARED_CLASS_NAMES.keys(), repeated


def test_modules_do_not_become_more() -> None:
    assert len(modules()) <= MODULE_LIMIT


def test_docstrings_name_their_subject() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for _ in VAGUE.findall(line)
    ]
    assert len(found) <= VAGUE_LIMIT, "\n".join(found)


def test_the_longer_name_owns_a_test() -> None:
    known = [Path("x/queue.py"), Path("x/queue_sync.py")]
    assert owner(Path("x/test_queue_sync_times.py"), known) == Path("x/queue_sync.py")
    assert owner(Path("x/test_queue_times.py"), known) == Path("x/queue.py")
    assert owner(Path("x/test_queues.py"), known) is None
    assert owner(Path("y/test_queue.py"), known) is None
