"""Run a notebook of the examples, and read the output of its cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def executed(path: Path, folder: Path | None = None) -> Any:
    """Return the notebook at ``path`` after all cells have run in a new kernel. ``folder``: the
    working directory of the kernel.
    """
    import nbclient
    import nbformat

    notebook = nbformat.read(path, 4)
    nbclient.NotebookClient(
        notebook,
        timeout=500,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}} if folder else {},
    ).execute()
    return notebook


def outputs(notebook: Any) -> list[Any]:
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [output for cell in cells for output in cell.outputs]


def printed(notebook: Any) -> str:
    """Return everything that the cells wrote to stdout and stderr."""
    streams = (output for output in outputs(notebook) if output.output_type == "stream")
    return "".join(stream.text for stream in streams)


def results(notebook: Any) -> list[str]:
    """Return the text of each cell's last expression."""
    return [
        output.data["text/plain"]
        for output in outputs(notebook)
        if output.output_type == "execute_result"
    ]
