"""One declaration makes flag, config key and default; flags win over the file, the file over defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from emberq.base.flag import BOOLEAN, LOG_LEVEL, FlagError, HelpRequested, SettingError
from emberq.base.log import LogLevel
from emberq.base.settings import (
    CONFIG,
    GENERAL,
    LOOKUPD_SECRET_VARIABLE,
    SECRET_VARIABLE,
    VERSION,
    Given,
    Group,
    Setting,
    SettingTable,
    read_secret,
    read_secrets,
    settings_of,
)

_GENERAL = Group(GENERAL)
_QUEUE = Group("Queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A bit of everything."""

    log_level: LogLevel = _GENERAL.declare(LOG_LEVEL, LogLevel.INFO, "log level")  # noqa: RUF009 - a field
    host: str = _GENERAL.text(lambda: "thishost", "name of the host", default_text="the hostname")
    size: int = _QUEUE.integer(10, "size of the queue", key="queue_size", at_least=0, at_most=99)
    sync_timeout_ns: int = _QUEUE.duration("2s", "time between syncs", at_least="1ms")
    snappy: bool = _QUEUE.boolean("compress", default=True)
    peer: tuple[str, ...] = _QUEUE.strings("a peer", key="peers")
    percentile: tuple[float, ...] = _QUEUE.floats("a percentile")
    internal: int = 7


VERBOSE = Setting(attribute="verbose", kind=BOOLEAN, default=False, meaning="x", heading=GENERAL, renamed_key="")
TABLE = SettingTable("queued", options_class=Options, command=(VERSION, CONFIG, VERBOSE))


def load(tmp_path: Path, toml: str, *flags: str) -> Given:
    config = tmp_path / "queued.cfg"
    config.write_text(toml)
    return TABLE.load([f"--config={config}", *flags])


def complaint_about(tmp_path: Path, toml: str) -> str:
    with pytest.raises(SettingError) as caught:
        load(tmp_path, toml)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_field_declares_flag_key_and_default() -> None:
    declared = [(setting.flag, setting.key, setting.shown_default) for setting in settings_of(Options)]
    assert declared == [
        ("log-level", "log_level", "info"),
        ("host", "host", "the hostname"),
        ("size", "queue_size", "10"),
        ("sync-timeout", "sync_timeout", "2s"),
        ("snappy", "snappy", "true"),
        ("peer", "peers", ""),
        ("percentile", "percentile", ""),
    ]


def test_without_flags_every_field_has_its_default() -> None:
    given = TABLE.load([])
    assert given == Given({}, version_asked=False, unknown_keys=())
    options = Options(**given.options)
    assert (options.host, options.size, options.sync_timeout_ns, options.peer) == (
        "thishost",
        10,
        2_000_000_000,
        (),
    )


def test_flags_become_fields() -> None:
    given = TABLE.load(["--size=5", "-snappy=false", "--sync-timeout", "1m", "--log-level=debug"])
    assert given.options == {
        "size": 5,
        "snappy": False,
        "sync_timeout_ns": 60_000_000_000,
        "log_level": LogLevel.DEBUG,
    }


def test_the_last_of_several_values_wins_but_lists_add_up() -> None:
    given = TABLE.load(["--size=1", "--size=2", "--peer=a:1", "--peer=b:2", "--percentile=0.9,0.5", "--percentile=1"])
    assert given.options == {"size": 2, "peer": ("a:1", "b:2"), "percentile": (0.9, 0.5, 1.0)}


def test_flags_of_the_command_are_no_options() -> None:
    given = TABLE.load(["--verbose", "--size=1"])
    assert given.options == {"size": 1}
    assert not given.version_asked


def test_whoever_asks_for_the_version_needs_no_config_file() -> None:
    assert TABLE.load(["--config=/does/not/exist", "--version"]).version_asked
    assert not TABLE.load(["--version=false"]).version_asked


def test_mistakes_and_questions_on_the_command_line_come_through() -> None:
    with pytest.raises(FlagError, match=r"^flag provided but not defined: -internal$"):
        TABLE.load(["--internal=1"])
    with pytest.raises(HelpRequested):
        TABLE.load(["--help"])


def test_a_config_file_sets_options_by_their_keys(tmp_path: Path) -> None:
    toml = """
        log_level = "debug"
        queue_size = 5
        sync_timeout = 250
        snappy = false
        peers = ["a:1", "b:2"]
        percentile = "0.9,0.5"
    """
    assert load(tmp_path, toml).options == {
        "log_level": LogLevel.DEBUG,
        "size": 5,
        "sync_timeout_ns": 250_000_000,
        "snappy": False,
        "peer": ("a:1", "b:2"),
        "percentile": (0.9, 0.5),
    }


def test_flags_win_over_the_config_file_whatever_their_order(tmp_path: Path) -> None:
    toml = 'queue_size = 5\npeers = ["a:1"]\nsnappy = false'
    given = load(tmp_path, toml, "--size=10", "--peer=c:3")
    assert given.options == {"size": 10, "peer": ("c:3",), "snappy": False}


def test_unknown_keys_are_left_alone_and_reported(tmp_path: Path) -> None:
    given = load(tmp_path, 'size = 5\nverbose = true\nconfig = "x"\n[table]\nqueue_size = 6')
    assert given.options == {}
    assert given.unknown_keys == ("size", "verbose", "config", "table")


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("queue_size = true", "queue_size must be an integer, not true"),
        ('queue_size = "many"', 'queue_size must be an integer, not "many"'),
        ("snappy = 0", "snappy must be true or false, not 0"),
        ("host = 5", "host must be a string, not 5"),
        ("host = 2024-01-01", 'host must be a string, not "2024-01-01"'),
        (
            "sync_timeout = 1.5",
            'sync_timeout must be a duration ("1m30s") or a number of milliseconds, not 1.5',
        ),
        ("peers = [1]", "peers must be an array of strings or a string with commas, not [1]"),
        ("percentile = 0.5", "percentile must be an array of numbers or a string with commas, not 0.5"),
    ],
)
def test_a_wrong_type_in_the_config_file_is_told_in_one_line(tmp_path: Path, toml: str, complaint: str) -> None:
    assert complaint_about(tmp_path, toml) == f"failed to load config file queued.cfg - {complaint}"


def test_an_unknown_word_in_the_config_file_is_told_in_nsqs_words(tmp_path: Path) -> None:
    assert complaint_about(tmp_path, 'log_level = "loud"') == "failed parsing log_level loud"
    assert complaint_about(tmp_path, "log_level = 2") == "failed parsing log_level 2"
    assert complaint_about(tmp_path, 'percentile = "x"') == "Could not parse: x"


def test_a_config_file_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    assert complaint_about(tmp_path, "size = ").startswith("failed to load config file queued.cfg - Invalid value")
    with pytest.raises(SettingError, match=r"^failed to load config file /no/file - No such file or directory$"):
        TABLE.load(["--config=/no/file"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"^failed to load config file .*binary - 'utf-8' codec"):
        TABLE.load([f"--config={tmp_path}/binary"])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (Options(size=-1), "--size must be at least 0, not -1"),
        (Options(size=100), "--size must be at most 99, not 100"),
        (Options(sync_timeout_ns=0), "--sync-timeout must be at least 1ms, not 0s"),
    ],
)
def test_a_value_out_of_bounds_is_told_with_the_bound(options: Options, complaint: str) -> None:
    with pytest.raises(SettingError) as caught:
        TABLE.check_ranges(options)
    assert str(caught.value) == complaint


def test_values_on_the_bounds_pass() -> None:
    TABLE.check_ranges(Options(size=0, sync_timeout_ns=1_000_000))
    TABLE.check_ranges(Options(size=99))


# Secrets


def test_a_secret_in_a_file_wins_over_that_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"  caf\xc3\xa9 in the file \r\n")
    assert read_secret("") == b""
    monkeypatch.setenv(SECRET_VARIABLE, " in the environment\n")
    assert read_secret("") == b"in the environment"
    assert read_secret(str(path)) == b"caf\xc3\xa9 in the file"


@pytest.mark.parametrize("content", [b"", b" \n", b"two\nlines", b"a\x00b", b"x" * 70_000])
def test_a_file_that_holds_no_secret_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=f"^--auth-secret-file: {path} (is empty|is not one line of text)$"):
        read_secret(str(path))


def test_a_secret_of_several_lines_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "one\ntwo")
    with pytest.raises(SettingError, match=r"^NSQ_AUTH_SECRET is not one line of text$"):
        read_secret("")


def test_another_secret_is_in_another_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "for nsqds")
    monkeypatch.setenv(LOOKUPD_SECRET_VARIABLE, "for nsqlookupds")
    assert read_secret("", flag="lookupd-secret-file", variable=LOOKUPD_SECRET_VARIABLE) == b"for nsqlookupds"
    assert read_secret("", flag="nsqd-secret-file", variable="") == b""


def test_a_file_may_have_several_secrets(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(b"# comment\r\n one \r\n\r\n#two\ncaf\xc3\xa9 # three\nfour")
    assert read_secrets(str(path), flag="http-secret-file") == [b"one", b"caf\xc3\xa9 # three", b"four"]


@pytest.mark.parametrize("content", [b"", b"#\n", b"# a\n\n#b", b"good\nb\x00d", b"x\n" * 40_000])
def test_a_file_without_a_secret_among_its_lines_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(content)
    complaint = "(is empty|holds no secret|is not lines of text)"
    with pytest.raises(SettingError, match=f"^--http-secret-file: {path} {complaint}$"):
        read_secrets(str(path), flag="http-secret-file")
