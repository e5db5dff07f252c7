"""A notebook cell with ``farandole.run`` and its live status, as Jupyter received them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.pictures.style import Drawing

STORED = "notebook.json"
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_notebook.ipynb"
CELL = 'import farandole\n\nresults = farandole.run(train, kwargs={"epochs": 60}, np=2)'
LINE = 22


def record(folder: Path) -> None:
    """Run the example's data and training function in a kernel, and store what the cell shows."""
    import nbclient
    import nbformat

    statuses: list[str] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc]
        """A client that keeps every text of the status, including those replaced in the cell."""

        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] in ("display_data", "update_display_data"):
                statuses.append(msg["content"]["data"]["text/plain"])
            return super().process_message(msg, cell, cell_index)

    example = nbformat.read(EXAMPLE, 4)
    setup = [cell for cell in example.cells if cell.cell_type == "code"][:2]
    notebook = nbformat.v4.new_notebook(cells=[*setup, nbformat.v4.new_code_cell(CELL)])
    Client(notebook, timeout=300, kernel_name="python3").execute()
    printed = [each.text for each in notebook.cells[-1].outputs if each.output_type == "stream"]
    stored = {"code": CELL, "statuses": statuses, "printed": "".join(printed)}
    (folder / STORED).write_text(json.dumps(stored, indent=1) + "\n")


def draw(folder: Path) -> str:
    stored = json.loads((folder / STORED).read_text())
    code, statuses = stored["code"].splitlines(), stored["statuses"]
    printed = stored["printed"].splitlines()
    height = 70 + LINE * (len(code) + len(printed)) + 130
    found = Drawing(
        760,
        height,
        "A job in a notebook cell",
        "The cell calls farandole.run. Below it, a status line while the job runs; then the status"
        " after the job, and the line that rank 0 printed.",
    )
    found.text(20, 70, "In [3]:", "s1 code small")
    found.rect(90, 46, 655, LINE * len(code) + 16, "lane", radius=6)
    for number, line in enumerate(code):
        found.text(104, 70 + LINE * number, line.replace(" ", "\u00a0"), "ink code")
    y = 46 + LINE * len(code) + 48
    rated = [status for status in statuses[:-1] if "steps/s" in status]
    running = rated[len(rated) // 2]
    y = _moment(found, y, "while it runs", [(running, "ink small")])
    lines = [(line, "ink code small") for line in printed]
    _moment(found, y, "afterwards", [(statuses[-1], "ink small"), *lines])
    return found.svg()


def _moment(found: Drawing, y: int, when: str, lines: list[tuple[str, str]]) -> int:
    """Draw the cell's output at one moment, and return the place of the next one."""
    found.path(f"M90 {y - 16} v{LINE * len(lines) + 22}", "l-s3")
    found.text(104, y, when, "s3 b small")
    for number, (line, kind) in enumerate(lines):
        found.text(104, y + LINE * (number + 1), line, kind)
    return y + LINE * len(lines) + 40
