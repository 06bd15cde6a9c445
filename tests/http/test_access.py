"""The file of secrets, and which requests show one of them."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest

from emberq.base.program import StartError
from emberq.http.access import AccessGuard, OwnSecret, SecretFile, open_secrets, shown_secret
from emberq.http.message import Request

FIRST, SECOND = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "secrets"
    path.write_text(f"# the operators\n{FIRST}\n\n  {SECOND}  \n#{FIRST[::-1]}x\n")
    path.chmod(0o600)
    return path


def request(target: str = "/stats", *, shows: str | None = None) -> Request:
    return Request("GET", target, headers={} if shows is None else {b"authorization": shows.encode("latin-1")})


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


# What a request shows.


@pytest.mark.parametrize(
    "shows", [f"Bearer {FIRST}", f"bearer   {SECOND} ", basic(f"ada:{FIRST}"), basic(f":{SECOND}")]
)
def test_each_secret_of_the_file_opens(path: Path, shows: str) -> None:
    assert SecretFile(str(path)).is_shown_by(request(shows=shows))


@pytest.mark.parametrize(
    "shows",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {FIRST}{SECOND}",
        f"Bearer {FIRST[:-1]}",
        f"Bearer {FIRST}x",
        f"Bearer {FIRST}, Bearer {FIRST}",
        f"Bearer #{FIRST[::-1]}x",
        "Bearer # the operators",
        FIRST,
        f"Digest {FIRST}",
        basic(FIRST),
        basic(f"{FIRST}:"),
        basic(f"ada:{FIRST}:"),
        f"Basic {FIRST}!",
        "Basic \xe9",
    ],
)
def test_nothing_else_opens(path: Path, shows: str | None) -> None:
    assert not SecretFile(str(path)).is_shown_by(request(shows=shows))


def test_a_password_may_have_colons() -> None:
    assert shown_secret(request(shows=basic("ada:a:b:c"))) == b"a:b:c"


def test_every_secret_is_compared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes must not tell which secret was shown, or whether one was."""
    secrets = SecretFile(str(path))
    compared: list[tuple[bytes, bytes]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return first == second

    monkeypatch.setattr("emberq.http.access.hmac.compare_digest", compare)
    for shown in (FIRST, SECOND, "x"):
        compared.clear()
        secrets.is_shown_by(request(shows=f"Bearer {shown}"))
        assert len(compared) == 2
        assert {len(digest) for pair in compared for digest in pair} == {32}


# The guard.


def test_a_request_without_a_secret_is_refused_and_told_how_to_show_one(path: Path) -> None:
    guard = AccessGuard(SecretFile(str(path)), realm="nsqd")
    refusal = guard(request())
    assert refusal is not None
    assert (refusal.status, refusal.body) == (401, b'{"message":"UNAUTHORIZED"}')
    assert ("WWW-Authenticate", 'Bearer realm="nsqd", Basic realm="nsqd"') in refusal.headers
    assert guard(request(shows=f"Bearer {SECOND}")) is None


def test_one_path_stays_open(path: Path) -> None:
    guard = AccessGuard(SecretFile(str(path)), realm="nsqadmin", open_path="/base/ping")
    assert guard(request("/base/ping?x=1")) is None
    for target in ("/ping", "/base/ping/", "/base/pingx", "/base//ping", "/BASE/PING", "/base/ping/../x"):
        assert guard(request(target)) is not None, target


def test_another_guard_may_decide(path: Path) -> None:
    guard = AccessGuard(SecretFile(str(path)), realm="nsqd", is_decided_elsewhere=lambda each: each.path == "/pub")
    assert guard(request("/pub")) is None
    assert guard(request("/stats")) is not None


# The file.


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", " is empty"),
        (" \n", " is empty"),
        ("# none yet\n\n", " holds no secret"),
        ("a\x01b\n", " is not lines of text"),
        ("x" * 70_000, " is not lines of text"),
        (None, ": No such file or directory"),
    ],
)
def test_a_file_without_secrets_ends_the_start(tmp_path: Path, content: str | None, complaint: str) -> None:
    path = tmp_path / "secrets"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartError) as refusal:
        open_secrets(str(path))
    assert str(refusal.value) == f"--http-secret-file: {path}{complaint}"


def test_without_a_file_there_is_no_guard() -> None:
    assert open_secrets("") is None


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_a_file_that_others_can_read_is_told(
    path: Path, caplog: pytest.LogCaptureFixture, mode: int, *, is_told: bool
) -> None:
    path.chmod(mode)
    SecretFile(str(path))
    assert (f"{path} can be read or written by every user of this machine" in caplog.text) == is_told
    assert FIRST not in caplog.text


def test_a_secret_that_can_be_guessed_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(f"{FIRST}\nhunter2\n")
    SecretFile(str(path))
    assert "holds a secret of less than 16 characters" in caplog.text
    assert "hunter2" not in caplog.text


def test_secrets_are_exchanged_without_a_break(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    secrets = SecretFile(str(path))
    newest = "a secret that is new"
    path.write_text(f"{SECOND}\n{newest}\n")
    assert not secrets.is_shown_by(request(shows=f"Bearer {newest}"))
    secrets.reload()
    assert "read 2 secrets" in caplog.text
    opened = [secrets.is_shown_by(request(shows=f"Bearer {each}")) for each in (FIRST, SECOND, newest)]
    assert opened == [False, True, True]


def test_a_file_that_cannot_be_used_any_more_leaves_the_secrets(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secrets = SecretFile(str(path))
    path.write_text("")
    secrets.reload()
    assert f"the secrets stay as they are: --http-secret-file: {path} is empty" in caplog.text
    assert secrets.is_shown_by(request(shows=f"Bearer {FIRST}"))


# The secret of a daemon that asks others.


def test_the_secret_for_others_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{FIRST}\n")
    secret = OwnSecret(str(path), flag="lookupd-secret-file")
    assert secret.value == FIRST.encode()
    path.write_text(SECOND)
    secret.reload()
    assert secret.value == SECOND.encode()
    path.unlink()
    secret.reload()
    assert secret.value == SECOND.encode()
    assert f"the secret stays as it is: --lookupd-secret-file: {path}: No such file" in caplog.text


def test_the_secret_for_others_is_not_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of the operator who started the daemon, and meant for other programs."""
    for variable in ("NSQ_AUTH_SECRET", "NSQ_LOOKUPD_SECRET"):
        monkeypatch.setenv(variable, FIRST)
    secret = OwnSecret("", flag="lookupd-secret-file")
    secret.reload()
    assert secret.value == b""


def test_a_file_without_a_secret_for_others_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"^--nsqd-secret-file: .* No such file or directory"):
        OwnSecret(str(tmp_path / "none"), flag="nsqd-secret-file")
