"""``show_run``: show a run in the output of a cell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from farandole.dashboard.widget.live import LiveView
from farandole.dashboard.widget.static import html_of
from farandole.dashboard.widget.view import view_of
from farandole.job.runs.folder import RunFolder
from farandole.jobs.run import Run


def show_run(run: Run, render_lib: Callable[[str], Any] | None = None) -> None:
    """Show a run in the output of the notebook's cell: state, curves, log, cause and findings.

    The output follows the run within a second, without a server. With anywidget it is a widget,
    replaced by static HTML at the run's end. Outside of notebooks, the main facts are printed.

    Arguments:
        run: The run.
        render_lib: A function that shows HTML, such as Databricks' ``displayHTML``. It is called
            once, with the run's present state.
    """
    folder = RunFolder(run.folder)
    if render_lib is not None:
        render_lib(html_of(view_of(folder)))
    elif _in_notebook():
        _display(folder)
    else:
        facts = run.facts().items()
        sys.stdout.write("".join(f"{name}: {text}\n" for name, text in facts if text))


def html_of_run(run: Run) -> str:
    """Return a run as static HTML."""
    return html_of(view_of(RunFolder(run.folder)))


def _in_notebook() -> bool:
    """Return whether IPython shows rich output: in a notebook, not in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _display(folder: RunFolder) -> None:
    from IPython.display import display

    handle: Any = None
    waiting: list[dict[str, Any]] = []

    def publish(bundle: dict[str, Any]) -> None:
        if handle is None:  # the run changed before the first display
            waiting.append(bundle)
        else:
            handle.update(bundle, raw=True)

    live = LiveView(folder, publish)
    show: Any = display
    handle = show(live.bundle(), raw=True, display_id=True)
    if waiting:
        handle.update(waiting[-1], raw=True)
