"""Take the pictures of the documentation: ``python -m tests.dashboard.browser.pictures``.

The runs are real: the demo, and the same program with other arguments. Each picture is taken in
both themes.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect

import farandole
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from tests.dashboard.browser.site import Site, chromium, opened, served
from tests.kits.jobs import runs_home

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "pictures"
WIDTH, HEIGHT, SCALE = 1200, 900, 1.5
COLORS = 192  # of a picture: enough for text and curves, and a third of the bytes
CURVES = '.card[data-metric="test/loss"] canvas'
# Other runs of the list: name, ranks and arguments of the program.
VARIANTS = {
    "one rank": (1, []),
    "batches of 64": (2, ["--batch-size", "64"]),
    "rate 0.01": (2, ["--lr", "0.01"]),
    "ten epochs": (2, ["--epochs", "10"]),
}


def run_demo(home: RunsHome) -> RunFolder:
    """Train the demo, as ``make demo`` does, and return its run."""
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", "--track"]
    program = [sys.executable, "examples/torch_digits.py"]
    subprocess.run([*command, *program], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    (folder,) = home.all_runs()
    return folder


def run_variants() -> dict[str, farandole.Run]:
    experiment = farandole.Experiment("learning-rates")
    found = {}
    for name, (ranks, arguments) in VARIANTS.items():
        request = farandole.ScriptRun(
            str(ROOT / "examples"),
            "torch_digits.py",
            arguments,
            name=name,
            ranks_per_node=ranks,
            tags={"data": "digits"},
        )
        found[name] = experiment.submit(request)
    for run in found.values():
        run.wait()
    return found


def taken(page: Page) -> bytes:
    """Return the page in view as a PNG file of few colors."""
    image = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    small = image.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def take(browser: Browser, site: Site, views: dict[str, tuple[str, str]]) -> None:
    """Take the picture of each view: its hash, and a selector of what must be visible."""
    for theme in ("light", "dark"):
        for name, (view, shown) in views.items():
            size = {"width": WIDTH, "height": HEIGHT}
            with opened(
                browser, site, viewport=size, color_scheme=theme, device_scale_factor=SCALE
            ) as page:
                page.goto(site.address + view)
                expect(page.locator(shown).first).to_be_visible()
                page.wait_for_timeout(800)  # the last curves are drawn
                (FOLDER / f"dashboard-{name}-{theme}.png").write_bytes(taken(page))


def main() -> None:
    with tempfile.TemporaryDirectory() as place, runs_home(Path(place)) as home:
        demo = run_demo(home)
        variants = run_variants()
        one, two = variants["one rank"].id, variants["batches of 64"].id
        with served() as site, chromium() as browser:
            views = {
                "runs": ("#/runs", ".cell-metric:not(:empty)"),
                "run": (f"#/run/{demo.run_id}", CURVES),
                "log": (f"#/run/{demo.run_id}/log", ".log-text:has-text('test accuracy')"),
                "compare": (f"#/compare/{one},{two}", CURVES),
            }
            take(browser, site, views)


if __name__ == "__main__":
    main()
