"""One finished run: curves, log, ranks, files."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from farandole.job.runs.folder import RunFolder
from tests.dashboard.browser.runs import LINES, NEEDLE, NO_EXCHANGE, POINTS

Visit = Callable[..., Page]

pytestmark = pytest.mark.slow


def card(page: Page, metric: str) -> Locator:
    return page.locator(f'.card[data-metric="{metric}"]')


def step_at(page: Page, chart: Locator, part: float) -> int:
    """Return the step under the cursor, at a part of a chart's width."""
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
    value = chart.locator(".legend-at")
    expect(value).to_have_text(re.compile("step"))
    return int(re.search(r"step (\d+)", value.inner_text())[1])  # type: ignore[index]


def test_curves_zoom_by_mouse_and_keys(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(f"#/run/{runs['base'].run_id}")
    loss = card(page, "loss")
    expect(loss).to_have_attribute("data-points", str(POINTS))
    assert step_at(page, loss, 0.02) < POINTS * 0.05

    box = loss.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
    page.mouse.up()
    everything = page.get_by_role("button", name="Show everything")
    expect(everything).to_be_visible()
    assert step_at(page, loss, 0.02) > POINTS * 0.45
    assert step_at(page, loss, 0.98) < POINTS * 0.8
    everything.click()
    expect(everything).to_be_hidden()
    assert step_at(page, loss, 0.02) < POINTS * 0.05

    loss.locator(".plot").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    expect(everything).to_be_visible()
    assert step_at(page, loss, 0.02) > POINTS * 0.1
    page.keyboard.press("0")
    expect(everything).to_be_hidden()


def test_curves_of_ranks_over_steps_and_time(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(f"#/run/{runs['ranks'].run_id}")
    loss = card(page, "loss")
    expect(loss.locator(".legend-name")).to_have_text([f"rank {rank}" for rank in range(4)])
    page.get_by_text("Ranks 0, 1, 2, 3").click()
    page.get_by_role("checkbox", name="rank 1").uncheck()
    expect(loss.locator(".legend-name")).to_have_text(["rank 0", "rank 2", "rank 3"])
    page.keyboard.press("Escape")

    page.get_by_role("button", name="Time").click()
    expect(page.get_by_role("button", name="Time")).to_have_attribute("aria-pressed", "true")
    expect(loss).to_have_attribute("data-points", str(POINTS))
    page.get_by_role("slider", name="Smoothing").fill("0.9")
    expect(page.locator(".smoothing output")).to_have_text("0.90")
    page.get_by_role("searchbox", name="Filter metrics").fill("acc")
    expect(loss).to_be_hidden()
    expect(card(page, "val/accuracy")).to_be_visible()


def test_a_long_log_opens_at_its_end_and_is_searched(
    visit: Visit, runs: dict[str, RunFolder]
) -> None:
    page = visit(f"#/run/{runs['base'].run_id}/log")
    log = page.get_by_role("log")
    expect(log).to_contain_text("the last line")
    assert f"line {LINES // 2}:" not in log.inner_text()
    for _ in range(12):
        before = log.inner_text()[:20]
        log.evaluate("log => log.scrollTop = 0")
        page.wait_for_function(
            "text => !document.querySelector('.log-text').textContent.startsWith(text)", arg=before
        )
    assert len(log.inner_text()) < 1_000_000
    assert "the last line" not in log.inner_text()

    page.keyboard.press("/")
    page.keyboard.type("the needle")
    page.keyboard.press("Enter")
    match = page.get_by_role("button", name=f"{NEEDLE:,}")
    expect(match).to_contain_text("the needle is here")
    expect(log).to_contain_text(f"line {NEEDLE}: the needle is here")
    page.get_by_role("button", name="Beginning").click()
    expect(log).to_contain_text("line 1:")
    page.get_by_role("button", name="End", exact=True).click()
    expect(log).to_contain_text("the last line")


def test_each_rank_has_a_host_and_a_log(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(f"#/run/{runs['ranks'].run_id}/ranks")
    expect(page.get_by_role("heading", name="4 ranks")).to_be_visible()
    page.locator('tr[data-rank="2"]').get_by_role("button").click()
    expect(page.get_by_role("log")).to_contain_text("hello of rank 2")
    page.get_by_role("combobox", name="Log of").select_option("3")
    expect(page.get_by_role("log")).to_contain_text("hello of rank 3")


def test_files_are_previewed_by_their_type(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(f"#/run/{runs['base'].run_id}/files")
    page.get_by_role("button", name="confusion.png").click()
    image = page.locator(".preview-image")
    expect(image).to_be_visible()
    page.wait_for_function("() => document.querySelector('.preview-image').naturalWidth === 160")
    page.get_by_role("searchbox", name="Filter files").fill("classes")
    page.get_by_role("button", name="classes.csv").click()
    expect(page.get_by_role("cell", name="dog")).to_be_visible()


def test_a_failed_run_shows_its_cause_and_request(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(f"#/run/{runs['failed'].run_id}")
    expect(page.locator(".cause")).to_contain_text("rank 1 failed: ValueError: the loss is NaN")
    expect(card(page, "gradient")).to_contain_text("2 values of NaN or infinity")
    page.get_by_role("tab", name="Details").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("python train.py")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)


def test_findings_come_first(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(f"#/run/{runs['ranks'].run_id}")
    expect(page.get_by_role("region", name="1 finding")).to_contain_text(NO_EXCHANGE)


def test_a_timeline_has_lanes_and_totals(visit: Visit, runs: dict[str, RunFolder]) -> None:
    page = visit(f"#/run/{runs['base'].run_id}/timeline")
    lanes = page.locator("canvas.lanes")
    expect(lanes).to_be_visible()
    totals = page.get_by_role("region", name="Totals of the activities")
    expect(totals.get_by_role("row", name="NEGOTIATE_ALLREDUCE 1 2.00 ms")).to_be_visible()
    box = lanes.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + box["height"] - 9)
    expect(page.locator(".lanes-tip")).to_contain_text("NEGOTIATE_ALLREDUCE")
