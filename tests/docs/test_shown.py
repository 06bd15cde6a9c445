"""What documents show is so: every command in them exists with its flags, and every block has a test or a reason."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from emberq import client
from emberq.admin.access.gate import Visitor
from emberq.admin.access.user import Role
from emberq.admin.alert import Alert, AlertKey, RuleFinding
from emberq.admin.audit import ActionOutcome, Audit, AuditedAction
from emberq.admin.rule import BUILT_IN, RuleSet
from emberq.admin.webhook import encode_message
from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.base.flag import parse_flags
from emberq.base.settings import SettingTable
from emberq.cli.catalog import CommandEntry, catalog
from emberq.cli.main import SUBCOMMANDS, Subcommand, main, resolve
from emberq.cli.terminal import CommandParser
from emberq.embedded import EmbeddedThread
from emberq.http.message import Request
from emberq.nsqd.options import NsqdOptions, topic_limits
from emberq.storage.data_folder import load_policies, save_policies
from tests.docs.console import read_commands
from tests.docs.shell import is_as_promised
from tests.support.command import require_command
from tests.support.embedded import publish
from tests.support.nsqd_process import NsqdProcess
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.glob("*.md") if path.name != "API.md")]
BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
CATALOG = catalog()
PROGRAMS = {entry.words[-1]: entry for entry in CATALOG if entry.is_program}
ENDS = re.compile(r"\s#.*$|\s[|>&].*$|[;)].*$")
"""Remarks, pipes and what follows in a shell are no part of a command."""


class ShownBlock(NamedTuple):
    """A block of a page."""

    page: str
    line: int
    kind: str
    text: str


def blocks(page: Path) -> list[ShownBlock]:
    text = page.read_text(encoding="utf-8")
    return [
        ShownBlock(page.name, text.count("\n", 0, match.start()) + 1, match["kind"], match["text"])
        for match in BLOCK.finditer(text)
    ]


# Commands.


def shown_commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Where a command stands, and its words: those typed in blocks, and those named within a line."""
    for block in blocks(page):
        if block.kind in ("", "sh", "console"):
            for number, line in enumerate(block.text.replace("\\\n", " ").splitlines(), block.line + 1):
                yield f"{page.name}:{number}", _split(line.removeprefix("$ "))
    for number, line in enumerate(BLOCK.sub("", page.read_text(encoding="utf-8")).splitlines(), 1):
        for code in re.findall(r"`([a-z_]+ [^`]+)`", line):
            yield f"{page.name}, line {number} of its text", _split(code)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(ENDS.sub("", line))
    except ValueError:
        return []


def entry_of(words: list[str]) -> CommandEntry | None:
    """The command that the words call; None if they call none of ours."""
    if words and words[0] in PROGRAMS:
        return PROGRAMS[words[0]]
    if words[:1] != ["emberq"]:
        return None
    found, names = CATALOG, [word for word in words[1:] if not word.startswith("-")]
    for name in names:
        below = next((entry for entry in found.commands if entry.words[-1] == name), None)
        if below is None:
            break
        found = below
    return found


def wrong_flags(words: list[str], entry: CommandEntry) -> list[str]:
    known = {name.lstrip("-") for flag in entry.flags for name in flag.names} | {"h", "help"}
    known |= {"json", "verbose", "context"} if entry.words == ("emberq",) else set()
    given = [word.partition("=")[0].lstrip("-") for word in words if re.match(r"--?[a-z]", word)]
    return [name for name in given if name not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_document_exists_with_its_flags(page: Path) -> None:
    wrong = []
    for place, words in shown_commands(page):
        entry = entry_of(words)
        if entry is None:
            continue
        if entry.commands and not entry.arguments and len(words) > 1 and not words[1].startswith("-"):
            wrong.append(f"{place}: no such command: {' '.join(words)}")
        elif wrong_flags(words, entry):
            wrong.append(f"{place}: no such flag: {wrong_flags(words, entry)} of {entry.name}")
    assert not wrong, "\n".join(wrong)


def declared() -> Iterator[tuple[str, SettingTable | CommandParser, str]]:
    """Every command with what reads its words, and its examples."""

    def walk(
        above: str, subcommands: tuple[Subcommand, ...]
    ) -> Iterator[tuple[str, SettingTable | CommandParser, str]]:
        for subcommand in subcommands:
            found = resolve(subcommand.flags)
            if isinstance(found, tuple):
                yield from walk(f"{above} {subcommand.name}", found)
            elif isinstance(found, SettingTable):
                yield f"{above} {subcommand.name}", found, ""
            else:
                parser = found()
                yield f"{above} {subcommand.name}", parser, parser.epilog or ""
                if subcommand.below:
                    yield from walk(f"{above} {subcommand.name}", resolve(subcommand.below))

    yield from walk("emberq", SUBCOMMANDS)


def test_every_example_in_a_help_text_can_be_typed() -> None:
    readers = {name: reader for name, reader, _ in declared()}
    count = 0
    for name, _, epilog in declared():
        for line in epilog.splitlines():
            words = _split(line.strip().partition("   ")[0])
            if words[:1] != ["emberq"]:
                continue
            entry = entry_of(words)
            assert entry is not None
            reader, rest = readers[entry.name], words[len(entry.words) :]
            if isinstance(reader, CommandParser):
                reader.after_reading.clear()  # contexts are the reader's own
                assert reader.read(rest), line
            else:
                parse_flags(rest, {setting.flag: setting.kind for setting in reader})
            count += 1
        assert name in readers
    assert count > 30


def test_a_command_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Try `emberq topc list`.\n\n```sh\nemberq pub t x --rte 3 | cat  # faster\nnsqd --jornal\n```\n")
    (_, first), (_, second), (_, third) = sorted(shown_commands(page), key=lambda found: found[1], reverse=True)
    found = [(words, entry_of(words)) for words in (first, second, third)]
    assert [(words, entry and entry.name) for words, entry in found] == [
        (["nsqd", "--jornal"], "emberq nsqd"),
        (["emberq", "topc", "list"], "emberq"),
        (["emberq", "pub", "t", "x", "--rte", "3"], "emberq pub"),
    ]
    assert [wrong_flags(words, entry) for words, entry in found if entry] == [["jornal"], [], ["rte"]]
    assert sum(entry_of(words) is not None for page in PAGES for _, words in shown_commands(page)) > 60


# Outputs.

CREATED = "TOPIC(orders): created"


def test_the_commands_of_the_client_guide_print_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "CLIENT.md").read_text(encoding="utf-8")
    commands = read_commands(page[page.index("## At the command line") :])
    assert len(commands) > 5
    with EmbeddedThread(with_lookupd=False) as nsq:  # until whose answer a new topic would keep its messages
        http = nsq.nsqd_http_addresses[0]
        monkeypatch.setenv("EMBERQ_NSQD_TCP_ADDRESS", nsq.nsqd_tcp_addresses[0])
        monkeypatch.setenv("EMBERQ_NSQD_HTTP_ADDRESS", http)
        for command in commands:
            assert main(shlex.split(command.words)[1:]) == 0, command.typed
            printed = capsys.readouterr().out.splitlines()
            promises = [line.replace("127.0.0.1:4151", http) for line in command.promises]
            assert len(printed) == len(promises), f"{command.typed} prints {printed}"
            for line, promise in zip(printed, promises, strict=True):
                assert is_as_promised(line, promise), f"{command.typed} prints {line!r} and not {promise!r}"


def test_the_log_lines_of_the_operations_guide_are_those_of_nsqd(tmp_path: Path) -> None:
    found = blocks(DOCS / "OPERATIONS.md")
    with ExitStack() as daemons:
        nsqds = []
        for form in ("text", "json"):
            (tmp_path / form).mkdir()
            log = tmp_path / f"{form}.log"
            nsqds.append(NsqdProcess(f"--log-format={form}", data_path=tmp_path / form, log_path=log))
        for nsqd in nsqds:
            daemons.enter_context(nsqd).connect().pub("orders", b"x")
        wait_until(lambda: all(CREATED in nsqd.log for nsqd in nsqds))
        text_line, json_line = (line for nsqd in nsqds for line in nsqd.log.splitlines() if CREATED in line)
    (shown_text,) = (block.text for block in found if block.text.startswith("[nsqd] 2026"))
    assert re.sub(r"\d", "0", text_line) == re.sub(r"\d", "0", shown_text.strip())
    (shown_json,) = (json.loads(block.text) for block in found if block.kind == "json")
    assert {**json.loads(json_line), "ts": ""} == {**shown_json, "ts": ""}


def test_what_the_operations_guide_has_operators_type_is_answered(nsq: EmbeddedThread) -> None:
    require_command("curl")
    http = nsq.nsqd_http_addresses[0]
    publish(nsq, "orders", b"x")  # a node that holds nothing would stop at once
    for block in blocks(DOCS / "OPERATIONS.md"):
        for line in block.text.splitlines() if block.kind == "sh" else ():
            words = [word.replace("127.0.0.1:4151", http) for word in _split(line)]
            assert words[0] == "curl"
            done = subprocess.run(
                [*words, "-sS", "--fail", "--noproxy", "*"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"


def test_the_limits_of_the_operations_guide_are_limits() -> None:
    page = DOCS / "OPERATIONS.md"
    examples = re.findall(r"--topic-limit='([^']+)'", page.read_text(encoding="utf-8"))
    (config,) = (tomllib.loads(block.text) for block in blocks(page) if block.kind == "toml")
    assert len(examples) == 4
    topic_limits(NsqdOptions(topic_limit=(*examples, *config["topic_limits"])))


async def test_the_audit_line_of_the_admin_guide_is_one(tmp_path: Path) -> None:
    _, shown = (json.loads(block.text) for block in blocks(DOCS / "ADMIN.md") if block.kind == "json")
    request = Request("DELETE", "/api/topics/orders", remote_address=shown["remote"])
    action = AuditedAction(action=shown["action"], topic=shown["topic"], count=shown["count"])
    audit = Audit(str(tmp_path / "audit"), clock=ManualClock())
    await audit.record(request, Visitor("ada", Role.ADMIN), action, ActionOutcome.DONE, "")
    written = json.loads((tmp_path / "audit").read_text())
    assert {**written, "time": ""} == {**shown, "time": ""}


def test_the_rules_of_the_admin_guide_hold_and_lead_to_the_message_that_it_shows() -> None:
    guide = (DOCS / "ADMIN.md").read_text()
    assert all(f"| {rule.name} |" in guide for rule in BUILT_IN)
    (rules,) = (RuleSet.parse(block.text.encode()) for block in blocks(DOCS / "ADMIN.md") if block.kind == "toml")
    shown, _ = (json.loads(block.text) for block in blocks(DOCS / "ADMIN.md") if block.kind == "json")
    (told,) = shown["alerts"]
    key = AlertKey(told["rule"], told["topic"], told["channel"])
    finding = RuleFinding(rules.rules[0], told["text"], told["value"])
    since_ns = int(told["since"]) * NS_PER_SECOND
    alert = Alert(key=key, finding=finding, began_ns=0, since_ns=since_ns, is_firing=True)
    message = encode_message([alert.document()], firing_count=1, time_ns=int(shown["time"]) * NS_PER_SECOND)
    assert json.loads(message) | {"via": shown["via"]} == shown


def test_the_errors_of_the_client_guide_are_those_of_the_client() -> None:
    (tree,) = (block.text for block in blocks(DOCS / "CLIENT.md") if block.text.startswith("NsqError"))
    above: list[type] = []
    for line in tree.splitlines():
        match = re.match(r"(?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+Error)\b", line)
        if match is None:
            continue  # an explanation that takes two lines
        depth = len(match["branch"]) // 4
        found = getattr(client, match["name"])
        assert depth == 0 or issubclass(found, above[depth - 1]), line
        above[depth:] = [found]


def test_the_policy_file_of_the_storage_page_is_read_and_written_as_shown(tmp_path: Path) -> None:
    (shown,) = (block.text for block in blocks(DOCS / "storage-format.md") if block.kind == "json")
    path = tmp_path / "channel-policies.json"
    path.write_text(shown)
    save_policies(path, load_policies(path))
    assert path.read_text().strip() == shown.strip()


# Every block.

CHECKED = {
    "ADMIN.md": {"sh": "test_admin_guide.py", "json": "test_shown.py", "toml": "test_shown.py"},
    "CELERY.md": {"python": "test_guides.py"},
    "CLIENT.md": {
        "console": "test_shown.py",
        "python": "test_guides.py",
        "python script": "test_guides.py",
        "python service": "test_guides.py",
        "python test": "test_guides.py",
    },
    "DEAD-LETTERS.md": {"sh": "test_reliability_guides.py", "python script": "test_reliability_guides.py"},
    "FRAMEWORKS.md": {"python": "test_guides.py"},
    "GUARANTEES.md": {"console": "test_guarantees.py"},
    "IDEMPOTENT-PUBLISH.md": {"sh": "test_reliability_guides.py", "python script": "test_reliability_guides.py"},
    "JOURNAL.md": {"sh": "test_journal_guide.py", "python script": "test_journal_guide.py"},
    "MIGRATION-FROM-OTHER-CLIENTS.md": {"python": "test_guides.py"},
    "OPERATIONS.md": {"json": "test_shown.py", "sh": "test_shown.py", "toml": "test_shown.py"},
    "README.md": dict.fromkeys(("console", "python script", "python service", "python test"), "test_readme.py"),
    "SECURITY.md": {"": "test_secure_example.py", "sh": "test_secure_example.py"},
    "SPARK.md": dict.fromkeys(("python", "toml", "json"), "../spark/pipeline/test_guide.py"),
    "storage-format.md": {"json": "test_shown.py"},
}
"""The test that runs the blocks of a kind, or compares them with what is printed."""

NOT_RUN = {
    ("ADMIN.md", ""): "command lines, whose flags are checked, and a file of users with its hashes left out",
    ("ARCHITECTURE.md", ""): "a drawing",
    ("CLIENT.md", ""): "the tree of errors, compared above",
    ("DEAD-LETTERS.md", ""): "command lines, whose flags are checked",
    ("DEPLOYMENT.md", ""): "for systemd, Docker and Kubernetes; the flags of our commands are checked",
    ("IDEMPOTENT-PUBLISH.md", ""): "bytes, drawn",
    ("JOURNAL.md", ""): "command lines, whose flags are checked, and a drawing of a folder",
    ("MIGRATION-FROM-OTHER-CLIENTS.md", "py"): "code of other clients",
    ("OPERATIONS.md", ""): "a log line, compared above, and command lines, whose flags are checked",
    ("OPERATIONS.md", "yaml"): "configuration of Prometheus",
    ("SPARK.md", "console"): "command lines, whose flags are checked, and those of other programs",
    ("SPARK.md", "dockerfile"): "for Docker",
    ("storage-format.md", ""): "drawings of bytes",
    ("storage-format.md", "python"): "a definition, not a program",
}
"""Blocks that are not run, and why."""


UNCHECKED = "{block.page}:{block.line}: say in CHECKED which test checks this, or in NOT_RUN why none does"


def test_every_block_is_checked_or_has_a_reason_not_to_be() -> None:
    for page in PAGES:
        for block in blocks(page):
            test = CHECKED.get(page.name, {}).get(block.kind, "")
            assert test or (page.name, block.kind) in NOT_RUN, UNCHECKED.format(block=block)
            if test:
                assert (Path(__file__).parent / test).is_file(), test
