"""Two runs next to each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from farandole.job.runs.folder import RunFolder

pytestmark = pytest.mark.slow


def test_selected_runs_are_compared(visit: Callable[..., Page], runs: dict[str, RunFolder]) -> None:
    page = visit("#/runs?experiment=digits")
    page.get_by_role("checkbox", name="Select one rank").check()
    expect(page.get_by_role("button", name="Compare 1")).to_be_disabled()
    page.get_by_role("checkbox", name="Select four ranks").check()
    page.get_by_role("button", name="Compare 2").click()
    expect(page.get_by_role("heading", name="2 runs compared")).to_be_visible()

    unfair = page.get_by_role("region", name="This comparison is unfair")
    expect(unfair.locator('[data-code="no-gradients-exchanged"]')).to_contain_text("four ranks")

    loss = page.locator('.card[data-metric="loss"]')
    expect(loss.locator(".legend-name")).to_have_text(["one rank", "four ranks"])
    page.get_by_role("button", name="Time").click()
    expect(loss).to_have_attribute("data-points", "5000")

    differences = page.get_by_role("region", name="Differences")
    expect(differences.get_by_role("row", name="command")).to_contain_text("--rate 0.4")
    measures = page.get_by_role("region", name="Measures")
    expect(measures.get_by_role("row", name="Ranks 1 4")).to_be_visible()
    expect(page.get_by_role("heading", name="To val/accuracy")).to_be_visible()
