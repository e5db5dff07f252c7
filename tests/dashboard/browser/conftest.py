"""One browser and one server for all tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

import farandole
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from tests.dashboard.browser.runs import submit_live, write_runs
from tests.dashboard.browser.site import CHROMIUM, Site, chromium, opened, served
from tests.kits.jobs import runs_home


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        missing = pytest.mark.skip(reason="needs Chromium (make system-packages)")
        for item in items:
            if item.path.is_relative_to(__file__.rpartition("/")[0]):
                item.add_marker(missing)


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunsHome]:
    with runs_home(tmp_path_factory.mktemp("page")) as found:
        yield found


@pytest.fixture(scope="package")
def live(home: RunsHome, tmp_path_factory: pytest.TempPathFactory) -> farandole.Run:
    """A run of two ranks that trains until it is stopped."""
    return submit_live(tmp_path_factory.mktemp("live"))


@pytest.fixture(scope="package")
def runs(home: RunsHome, live: farandole.Run) -> dict[str, RunFolder]:
    """Finished runs, written while the live one starts."""
    return write_runs(home)


@pytest.fixture(scope="package")
def site(runs: dict[str, RunFolder]) -> Iterator[Site]:
    with served() as found:
        yield found


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a view by its hash, in a fresh profile."""
    with ExitStack() as stack:

        def visited(view: str = "#/runs", **options: Any) -> Page:
            page = stack.enter_context(opened(browser, site, **options))
            page.goto(site.address + view)
            return page

        yield visited
