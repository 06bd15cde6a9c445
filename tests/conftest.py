"""Fixtures that start nsqd: in this process with a clock that stands still, or as a process of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pytest_asyncio import is_async_test

# Their failed assertions should explain themselves like those of tests; this works only ahead of the import.
pytest.register_assert_rewrite("tests.support")

from emberq.base.clock import ManualClock  # noqa: E402
from emberq.embedded import EmbeddedThread  # noqa: E402
from emberq.nsqd.options import NsqdOptions  # noqa: E402
from tests.support.certificates import Authority  # noqa: E402
from tests.support.embedded import Broker  # noqa: E402
from tests.support.examples import SEARCH, SHARE, USUAL_COUNT  # noqa: E402
from tests.support.harness import NsqdHarness  # noqa: E402
from tests.support.http_client import HttpClient  # noqa: E402
from tests.support.lookupd_harness import LookupdHarness  # noqa: E402
from tests.support.loop import LOOPS, watched_loop  # noqa: E402
from tests.support.nsqd_process import NsqdProcess  # noqa: E402
from tests.support.raw_client import Client  # noqa: E402

# Reading the certificates of the system's authorities takes 50 ms, in each client that may use TLS. No test needs them.
os.environ["SSL_CERT_FILE"] = os.devnull
# Nor does one multiply matrices; a process that imports Arrow, and by it numpy, is spared the threads for it: 0.1 s.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# No deadlines: a busy machine takes long over examples. A search keeps what failed, and plays it first.
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=USUAL_COUNT // SHARE,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("random" if SEARCH else "fixed")

HAS_FAILED = pytest.StashKey[bool]()
"""Whether the latest phase of a test failed."""

StartNsqd = Callable[..., NsqdHarness]
StartNsqdProcess = Callable[..., NsqdProcess]


def pytest_sessionstart() -> None:
    """A shell that runs us in the background ignores Ctrl-C for us and all that we start; tests of it need it back."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A search plays only what has examples: properties and state machines."""
    if SEARCH:
        others = [item for item in items if not getattr(getattr(item, "obj", None), "is_hypothesis_test", False)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: no collection of garbage need look through them each time."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that an asynchronous test runs on, once on each: what its mark or its module's mark names."""
    mark = item.get_closest_marker("loop")
    return {name: LOOPS[name] for name in (mark.args if mark else ["movable"])}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports travel between processes as UTF-8; what hostile clients make us log may not be text at all."""
    report = yield
    item.stash[HAS_FAILED] = report.failed
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _watch(request: pytest.FixtureRequest) -> None:
    """Watches the loop of an asynchronous test; it is the first fixture, so that it ends when the others are gone."""
    if is_async_test(request.node):
        request.getfixturevalue("unhandled")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A program logs to the standard error of its test, which is closed when the next test logs."""
    root = logging.getLogger("emberq")
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
async def unhandled(request: pytest.FixtureRequest) -> AsyncIterator[list[dict[str, Any]]]:
    """What no code of the test's loop handled; it fails the test unless it is taken out."""
    async with watched_loop(has_failed=lambda: request.node.stash[HAS_FAILED]) as unhandled:
        yield unhandled


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    """An empty data folder; a test may put files there before it starts nsqd."""
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def transport() -> str:
    """`tcp` or `unix`: what nsqd listens on. Folders whose tests should run over both override it."""
    return "tcp"


@pytest.fixture
def listen_address(transport: str) -> Iterator[str]:
    """An address to listen on. A unix path must be short, so it cannot lie in the test's own folder."""
    if transport == "tcp":
        yield "127.0.0.1:0"
        return
    with tempfile.TemporaryDirectory(prefix="nsqd-") as folder:
        yield f"{folder}/nsqd.sock"


@pytest.fixture
def http_listen_address(listen_address: str) -> str:
    """The same kind of address for HTTP."""
    return "127.0.0.1:0" if listen_address == "127.0.0.1:0" else f"{listen_address}.http"


@pytest.fixture
def start_nsqd(data_path: Path, listen_address: str, http_listen_address: str) -> Iterator[StartNsqd]:
    """Starts nsqd with the given options, in this process."""
    with ExitStack() as running:

        def start(**options: Any) -> NsqdHarness:
            fixed = {
                "data_path": str(data_path),
                "tcp_address": listen_address,
                "http_address": http_listen_address,
                "https_address": "127.0.0.1:0",
            }
            return running.enter_context(NsqdHarness(NsqdOptions(**(fixed | options))))

        yield start


@pytest.fixture
def nsqd(start_nsqd: StartNsqd, request: pytest.FixtureRequest) -> NsqdHarness:
    """nsqd in this process, with the options of the mark `nsqd`."""
    return start_nsqd(**_marked_options(request, "nsqd"))


@pytest.fixture
def client(nsqd: NsqdHarness) -> Client:
    """A connection to the nsqd."""
    return nsqd.connect()


@pytest.fixture
def http(nsqd: NsqdHarness) -> HttpClient:
    """The HTTP API of the nsqd."""
    return HttpClient(nsqd.http_address)


@pytest.fixture
def broker(nsq: EmbeddedThread) -> Broker:
    """The first nsqd of the embedded cluster, seen from outside."""
    return Broker(nsq)


@pytest.fixture
def lookupd(request: pytest.FixtureRequest) -> Iterator[LookupdHarness]:
    """nsqlookupd in this process, with the options of the mark `lookupd`."""
    with LookupdHarness(**_marked_options(request, "lookupd")) as running:
        yield running


def _marked_options(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    mark = request.node.get_closest_marker(name)
    return dict(mark.kwargs) if mark else {}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Issues certificates."""
    return Authority(tmp_path, "authority")


@pytest.fixture
def process_as_before() -> Iterator[None]:
    """Puts back what a program sets for its whole process: what signals do. (Its log is put back after every test.)"""
    actions = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, action in actions.items():
        signal.signal(number, action)


@pytest.fixture
def start_nsqd_process(data_path: Path, tmp_path: Path) -> Iterator[StartNsqdProcess]:
    """Starts the real nsqd command with the given flags, always on the test's data folder."""
    number = count(1)
    with ExitStack() as running:

        def start(*flags: str) -> NsqdProcess:
            log_path = tmp_path / f"nsqd-{next(number)}.log"
            return running.enter_context(NsqdProcess(*flags, data_path=data_path, log_path=log_path))

        yield start
