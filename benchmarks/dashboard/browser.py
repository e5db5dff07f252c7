"""Speed of the page in headless Chromium: ``python -m benchmarks.dashboard.browser``.

Needs Chromium and Playwright, as the tests of the page do. Times are measured as a user perceives
them: from an input to the frame after the change. Frames are counted while a script zooms and moves
at every frame; headless Chromium draws at most 60 in a second.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator

from playwright.sync_api import Browser, CDPSession, Page, expect

from benchmarks.dashboard.__main__ import (
    METRICS,
    POINTS,
    Result,
    Sizes,
    curve_records,
    write_run,
)
from farandole.job.runs.home import HOME_VARIABLE, RunsHome
from farandole.job.runs.journal import encode
from tests.dashboard.browser.site import Site, chromium, opened, served

LONG = 100_000  # points of one curve
FRAMES = 120
APPENDED = 100_000  # live points
FILTER = """async texts => {
    const field = document.querySelector("input.search");
    const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    let longest = 0;
    for (const text of texts) {
        await frame();
        const begin = performance.now();
        field.value = text;
        field.dispatchEvent(new Event("input"));
        await frame();
        longest = Math.max(longest, performance.now() - begin);
    }
    return longest;
}"""
ZOOM = """async frames => {
    const plot = document.querySelector(".plot");
    const box = plot.querySelector(".u-over").getBoundingClientRect();
    const next = () => new Promise(requestAnimationFrame);
    const options = {bubbles: true, cancelable: true, clientX: box.left + box.width / 3,
                     clientY: box.top + 20};
    await next();
    const begin = performance.now();
    for (let at = 0; at < frames; at++) {
        const zoom = at % 2 === 0;
        plot.dispatchEvent(new WheelEvent("wheel", zoom
            ? {...options, ctrlKey: true, deltaY: at % 24 < 12 ? -100 : 100}
            : {...options, shiftKey: true, deltaY: at % 48 < 24 ? 30 : -30}));
        await next();
    }
    return 1000 * frames / (performance.now() - begin);
}"""
# Whether the server has read the last values of all runs, which it does in the background.
READ = """async total => {
    const text = await (await fetch("/api/runs")).text();
    return text.split(/"(?:accuracy|loss|metric 0)":/).length > total;
}"""
DRAWN = """count => document.querySelectorAll('.card[data-points] canvas').length >= count"""


def measured(home: RunsHome, sizes: Sizes) -> Iterator[Result]:
    last = [{"step": 5, "time": 1.7e9, "values": {"loss": 0.25, "accuracy": 0.75}}]
    for number in range(sizes.runs):
        write_run(home, f"experiment-{number % 20}", number, last)
    records = curve_records()
    curves = [write_run(home, "curves", 10**6 + n, records) for n in range(sizes.curves)]
    long = [
        {"step": n, "time": 1.7e9 + n, "values": {"loss": n * 7919 % 1000}} for n in range(LONG)
    ]
    one = write_run(home, "long", 10**7, long)
    total = sizes.runs + sizes.curves + 1
    with served() as site, chromium() as browser:
        with opened(browser, site) as page:
            yield from _filter(page, total)
        yield from _zoom(browser, site, one.run_id)
        ids = [folder.run_id for folder in curves]
        yield from _compare(browser, site, ids)
        yield from _latency(browser, site, one.run_id, one.metrics_of(0))
        yield from _growth(browser, site, one.run_id, one.metrics_of(0))


def _filter(page: Page, total: int) -> Iterator[Result]:
    expect(page.get_by_text(f"{total:,} runs", exact=True)).to_be_visible(timeout=120_000)
    expect(page.locator(".cell-metric:not(:empty)").first).to_be_visible(timeout=120_000)
    page.wait_for_function(READ, arg=total, timeout=120_000)
    texts = ["r", "run 7", "run 77", "state:completed -run", "tag:n=x 99", ""]
    longest = page.evaluate(FILTER, texts)
    yield Result(
        f"filter {total:,} runs, the longest of {len(texts)}", f"{longest:.0f} ms", "100 ms"
    )


def _zoom(browser: Browser, site: Site, run_id: str) -> Iterator[Result]:
    with opened(browser, site) as page:
        page.goto(f"{site.address}#/run/{run_id}")
        page.wait_for_function(f"() => ({DRAWN})(1)")
        rate = page.evaluate(ZOOM, FRAMES)
        yield Result(f"zoom and move a curve of {LONG:,} points", f"{rate:.0f} frames/s", "50")


def _compare(browser: Browser, site: Site, ids: list[str]) -> Iterator[Result]:
    what = f"{len(ids)} runs x {METRICS} metrics x {POINTS:,} points"
    for again in ("journals converted now", "again"):
        with opened(browser, site, viewport={"width": 1600, "height": 2400}) as page:
            tools = page.context.new_cdp_session(page)
            tools.send("Performance.enable")
            begin, before = time.perf_counter(), _busy(tools)
            page.goto(f"{site.address}#/compare/{','.join(ids)}")
            page.wait_for_function(f"() => ({DRAWN})({METRICS})", timeout=120_000)
            seconds, busy = time.perf_counter() - begin, _busy(tools) - before
            value = f"{seconds:.2f} s, page busy {busy:.2f} s"
            yield Result(f"open {what}, {again}", value, "1 s")


def _busy(tools: CDPSession) -> float:
    """Return the seconds for which the page's main thread has worked."""
    found = {
        each["name"]: each["value"] for each in tools.send("Performance.getMetrics")["metrics"]
    }
    return float(found["TaskDuration"])


def _latency(browser: Browser, site: Site, run_id: str, journal: str) -> Iterator[Result]:
    """Append single points, and measure the longest time until the page has drawn one of them."""
    longest = 0.0
    with opened(browser, site) as page:
        page.goto(f"{site.address}#/run/{run_id}")
        page.wait_for_function(f"() => ({DRAWN})(1)")
        points = "() => Number(document.querySelector('.card').dataset.points)"
        for pause in (300, 410, 520, 630, 740):
            page.wait_for_timeout(pause)
            before = page.evaluate(points)
            record = {"step": before, "time": 1.7e9 + before, "values": {"loss": 1.0}}
            begin = time.perf_counter()
            with open(journal, "ab") as file:
                file.write(encode(record))
            page.wait_for_function(f"before => ({points})() > before", arg=before)
            longest = max(longest, time.perf_counter() - begin)
    yield Result("a new point until it is drawn, the longest of 5", f"{longest:.2f} s", "1 s")


def _growth(browser: Browser, site: Site, run_id: str, journal: str) -> Iterator[Result]:
    """Append points while the page is open, and compare the heap's size before and after."""
    with opened(browser, site) as page:
        tools = page.context.new_cdp_session(page)
        page.goto(f"{site.address}#/run/{run_id}")
        page.wait_for_function(f"() => ({DRAWN})(1)")

        def heap() -> float:
            tools.send("HeapProfiler.collectGarbage")
            return float(tools.send("Runtime.getHeapUsage")["usedSize"]) / 1e6

        before = heap()
        for first in range(LONG, LONG + APPENDED, APPENDED // 50):
            steps = range(first, first + APPENDED // 50)
            with open(journal, "ab") as file:
                file.write(
                    b"".join(
                        encode({"step": n, "time": 1.7e9 + n, "values": {"loss": n % 100}})
                        for n in steps
                    )
                )
            page.wait_for_timeout(100)
        done = f"() => Number(document.querySelector('.card').dataset.points) >= {LONG + APPENDED}"
        page.wait_for_function(done, timeout=60_000)
        text = f"{before:.1f} MB, then {heap():.1f} MB"
        yield Result(f"heap of the page, {APPENDED:,} live points later", text)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dashboard.browser", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    quick = parser.parse_args().quick
    sizes = Sizes(1000, 10, 0) if quick else Sizes(10_000, 100, 0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[HOME_VARIABLE] = os.path.join(folder, "home")
        os.environ["XDG_STATE_HOME"] = os.path.join(folder, "state")
        for each in measured(RunsHome(), sizes):
            print(f"{each.what:<66} {each.value:<30} {each.goal}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
