"""One browser and one cluster for all tests of this folder, and a page for each test.

What takes long to start is kept from the first test that needs it to the last one of this folder; not to the end of the
session, because Playwright keeps an event loop running, which tests elsewhere must not find. The page is the same for
all tests, too: a new one would have to fetch and compile every script anew. After each test it forgets what that test
has left behind, and the test fails if the page's console has complaints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import PATIENCE_MS, Complaints, forget, open_page, running_chromium
from tests.browser.cluster import Cluster, running_cluster
from tests.browser.kept import Kept

FOLDER = Path(__file__).parent

expect.set_options(timeout=PATIENCE_MS)


_kept = Kept()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """After a test of this folder, when its fixtures are gone."""
    if nextitem is None or FOLDER not in nextitem.path.parents:
        _kept.close()


@pytest.fixture(scope="module")
def kept() -> Kept:
    """For what else is worth keeping."""
    return _kept


@pytest.fixture(scope="module")
def browser() -> Browser:
    return _kept.get("browser", running_chromium)


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """What the consoles of the test's pages say; nothing, unless the test expects it."""
    complaints = Complaints()
    yield complaints
    assert complaints.unexpected() == []


@pytest.fixture
def page(browser: Browser, complaints: Complaints) -> Iterator[Page]:
    page = _kept.get("page", lambda: open_page(browser))
    with complaints.watching(page):
        yield page
        forget(page)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two nsqds, an nsqlookupd and an nsqadmin where everybody may do everything. Tests use topics of their own."""
    return _kept.get("cluster", lambda: running_cluster(tmp_path_factory.mktemp("cluster")))
