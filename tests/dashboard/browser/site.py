"""A home with runs, the server of their page, and a browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
SECONDS = 15  # for everything that a page shows: a busy machine is slow
expect.set_options(timeout=SECONDS * 1000)


class Site(NamedTuple):
    """A server of the page: its address with the token, and without."""

    entry: str
    address: str


@contextlib.contextmanager
def served() -> Iterator[Site]:
    """Serve the home of the environment by ``farandole dashboard``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "farandole", "dashboard", "--no-browser", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        entry = process.stdout.readline().strip()
        yield Site(entry, entry.partition("?")[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
        assert process.stdout is not None
        process.stdout.close()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium."""
    with sync_playwright() as playwright, _launched(playwright) as browser:
        yield browser


@contextlib.contextmanager
def _launched(playwright: Playwright) -> Iterator[Browser]:
    sandbox = [] if os.getuid() else ["--no-sandbox"]  # Chromium has none for root
    browser = playwright.chromium.launch(
        executable_path=CHROMIUM, args=[*sandbox, "--disable-gpu", "--force-color-profile=srgb"]
    )
    try:
        yield browser
    finally:
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, site: Site, **options: Any) -> Iterator[Page]:
    """Open the page in a fresh profile. Errors of its scripts fail the test.

    ``options``: of ``Browser.new_context``, such as ``viewport`` and ``color_scheme``.
    """
    options.setdefault("viewport", {"width": 1280, "height": 800})
    context = browser.new_context(**options)
    context.set_default_timeout(SECONDS * 1000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(f"{error}\n{error.stack}"))
    page.on("console", lambda text: errors.append(text.text) if text.type == "error" else None)
    try:
        page.goto(site.entry)
        yield page
        assert errors == []
    finally:
        context.close()


def axe(page: Page) -> list[str]:
    """Return the violations of the accessibility rules of axe that are serious or critical."""
    source = Path(__file__).parent / "vendor" / "axe" / "axe.min.js"
    page.evaluate(source.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
