"""The list of runs: filter, sort, keys."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from farandole.job.runs.folder import RunFolder
from tests.dashboard.browser.runs import HOSTILE, SWEEP

Visit = Callable[..., Page]
WRITTEN = SWEEP + 5  # and the live one

pytestmark = pytest.mark.slow


def names(page: Page) -> list[str]:
    """Return the names in view, from top to bottom."""
    return page.locator(".rows .row-link").all_inner_texts()


def test_text_states_and_experiments_filter_the_list(visit: Visit) -> None:
    page = visit()
    expect(page.get_by_text(f"{WRITTEN} runs", exact=True)).to_be_visible()

    page.get_by_role("searchbox", name="Filter runs").fill("tag:team=vision")
    expect(page.get_by_text(f"1 of {WRITTEN} runs")).to_be_visible()
    assert names(page) == ["one rank"]

    page.get_by_role("searchbox", name="Filter runs").fill("")
    page.get_by_role("button", name="failed").click()
    expect(page.get_by_text(f"1 of {WRITTEN} runs")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="too fast")
    expect(row).to_contain_text("the loss is NaN")

    page.get_by_role("button", name="failed").click()
    page.get_by_role("button", name=re.compile("^digits")).click()
    expect(page.get_by_text(f"4 of {WRITTEN} runs")).to_be_visible()

    page.get_by_role("searchbox", name="Filter runs").fill("no run has this name")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.get_by_role("button", name="Clear the filter").click()
    expect(page.get_by_text(f"{WRITTEN} runs", exact=True)).to_be_visible()


def test_a_column_sorts_in_both_directions(visit: Visit) -> None:
    page = visit("#/runs?experiment=sweep")
    page.get_by_role("button", name="loss").click()
    expect(page.locator(".rows .row-link").first).to_have_text("trial 000")
    page.get_by_role("button", name="loss").click()
    expect(page.locator(".rows .row-link").first).to_have_text(f"trial {SWEEP - 1:03d}")
    page.reload()
    expect(page.locator(".rows .row-link").first).to_have_text(f"trial {SWEEP - 1:03d}")


def test_only_rows_in_view_are_drawn(visit: Visit) -> None:
    page = visit("#/runs?experiment=sweep")
    expect(page.locator(".rows .row-link").first).to_have_text(f"trial {SWEEP - 1:03d}")
    assert len(names(page)) < 60
    page.locator(".rows").evaluate("rows => rows.scrollTop = rows.scrollHeight")
    expect(page.locator(".rows .row-link").last).to_have_text("trial 000")
    assert len(names(page)) < 60


def test_keys_alone_find_select_and_compare(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit()
    expect(page.get_by_text(f"{WRITTEN} runs", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("rank experiment:digits -fast")
    expect(page.get_by_text(f"2 of {WRITTEN} runs")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="four ranks")).to_be_focused()
    page.keyboard.press("x")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="one rank")).to_be_focused()
    page.keyboard.press("x")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="2 runs compared")).to_be_visible()

    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Curves")).to_be_visible()
    page.keyboard.press("2")
    expect(page.get_by_role("tab", name="Log")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("compare the selected runs")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_markup_in_names_is_shown_as_text(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit("#/runs?experiment=digits")
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.get_by_text(f"{HOSTILE}={HOSTILE}")).to_be_visible()
    page.goto(f"{page.url.partition('#')[0]}#/run/{runs['base'].run_id}/files")
    page.get_by_role("button", name="page.html").click()
    expect(page.locator(".preview-text")).to_have_text(HOSTILE)
    assert page.title() != "owned"
