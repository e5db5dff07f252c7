"""Both themes, a narrow screen, and accessibility."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from farandole.job.runs.folder import RunFolder
from tests.dashboard.browser.site import axe

Visit = Callable[..., Page]

pytestmark = pytest.mark.slow

BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_accessible(theme: str, visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(color_scheme=theme, reduced_motion="reduce")
    base, ranks = runs["base"].run_id, runs["ranks"].run_id
    views = {
        "#/runs": ".rows .row",
        f"#/run/{ranks}": ".card canvas",
        f"#/run/{base}/log": ".log-text:has-text('the last line')",
        f"#/run/{ranks}/ranks": ".host",
        f"#/run/{base}/files": ".file",
        f"#/run/{base}/timeline": "canvas.lanes",
        f"#/run/{runs['failed'].run_id}/details": ".pairs",
        f"#/compare/{base},{ranks}": ".card canvas",
    }
    found = {}
    for view, shown in views.items():
        page.goto(page.url.partition("#")[0] + view)
        expect(page.locator(shown).first).to_be_visible()
        found[view] = axe(page)
    page.keyboard.press("?")
    found["keys"] = axe(page)
    assert {view: each for view, each in found.items() if each} == {}


def test_the_theme_follows_the_system_until_it_is_switched(visit: Visit) -> None:
    page = visit(color_scheme="dark")
    dark = page.evaluate(BACKGROUND)
    page.get_by_role("button", name="Switch to the light theme").click()
    light = page.evaluate(BACKGROUND)
    assert light != dark
    page.reload()
    assert page.evaluate(BACKGROUND) == light
    page.emulate_media(color_scheme="light")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(BACKGROUND) == light


def test_a_narrow_screen_scrolls_only_downwards(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(viewport={"width": 380, "height": 700})
    base, ranks = runs["base"].run_id, runs["ranks"].run_id
    parts = ("curves", "log", "ranks", "files", "timeline", "details")
    views = ["#/runs", *(f"#/run/{ranks}/{part}" for part in parts), f"#/compare/{base},{ranks}"]
    for view in views:
        page.goto(page.url.partition("#")[0] + view)
        expect(page.locator("main > *").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 380, view
    page.goto(page.url.partition("#")[0] + "#/runs?experiment=digits")
    expect(page.get_by_role("link", name="one rank")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="too fast")).to_contain_text("failed")
