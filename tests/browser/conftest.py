"""A browser for each module, and a page for each test that fails if the page's console has complaints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import PATIENCE_MS, Complaints, open_page, running_chromium
from tests.browser.cluster import Cluster, running_cluster

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: Playwright keeps an event loop running, which other tests must not find."""
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """What the consoles of the test's pages say; nothing, unless the test expects it."""
    complaints = Complaints()
    yield complaints
    assert complaints.unexpected() == []


@pytest.fixture
def page(browser: Browser, complaints: Complaints) -> Iterator[Page]:
    with open_page(browser, complaints) as page:
        yield page


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nsqds, an nsqlookupd and an nsqadmin where everybody may do everything."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
