"""A run that is really training: live points, followed logs, and its stop."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

import farandole

pytestmark = pytest.mark.slow

GROWS = """([selector, before]) => {
    const card = document.querySelector(selector);
    return Number(card.dataset.points) > before;
}"""


def test_a_run_is_watched_and_stopped(visit: Callable[..., Page], live: farandole.Run) -> None:
    page = visit("#/runs?experiment=live")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="live", exact=True))
    expect(row).to_contain_text("running", timeout=60_000)
    row.get_by_role("link").click()

    selector = '.card[data-metric="loss"]'
    expect(page.locator(selector)).to_be_visible()
    for before in (0, 10, 20):  # new points arrive without a reload
        page.wait_for_function(GROWS, arg=[selector, before])

    page.get_by_role("tab", name="Ranks").click()
    for rank in range(2):
        expect(page.locator(f'tr[data-rank="{rank}"]')).to_contain_text(
            re.compile("running|waiting")
        )

    page.get_by_role("tab", name="Log").click()
    page.get_by_role("combobox", name="Log of").select_option("1")
    log = page.get_by_role("log")
    expect(log).to_contain_text("of rank 1")
    last = log.inner_text().splitlines()[-1]
    page.wait_for_function(
        "last => !document.querySelector('.log-text').textContent.trimEnd().endsWith(last)",
        arg=last,
    )
    assert log.evaluate("log => log.scrollTop + log.clientHeight > log.scrollHeight - 40")

    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".run-top .state")).to_have_text("running")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Stop the run").click()
    expect(page.locator(".run-top .state")).to_have_text("canceled", timeout=60_000)
    assert live.status() == "canceled"
