"""Live views: a thread per view reads the run and sends changes to the notebook."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from farandole.base.log import logger
from farandole.dashboard.widget.static import html_of
from farandole.dashboard.widget.view import view_of
from farandole.job.runs.folder import RunFolder

EVERY = 0.5  # seconds between two checks of the run
_PATIENCE = 20  # consecutive failed updates before the view gives up


class Widget(Protocol):
    """A widget of anywidget with the view's data."""

    view: dict[str, Any]


def make_widget(view: dict[str, Any]) -> Any:
    """Return a widget that shows ``view``; None if anywidget is not installed."""
    try:
        from farandole.dashboard.widget.any_widget import RunWidget
    except ImportError:
        return None
    return RunWidget(view=view)


class LiveView:
    """The output of one cell, updated until the run ends.

    ``publish`` replaces the output of the cell by a MIME bundle.
    """

    def __init__(self, folder: RunFolder, publish: Callable[[dict[str, Any]], None]) -> None:
        self._folder = folder
        self._publish = publish
        self._over = threading.Event()
        self.view = view_of(folder)
        self.widget = None if self.view["final"] else make_widget(self.view)
        self._thread = threading.Thread(target=self._run, name="farandole-view", daemon=True)
        if not self.view["final"]:
            self._thread.start()

    def bundle(self) -> dict[str, Any]:
        """Return the output as a MIME bundle: static HTML, and the widget, if any."""
        found: dict[str, Any] = {
            "text/plain": f"Run({self.view['id']}: {self.view['state']})",
            "text/html": html_of(self.view),
        }
        if self.widget is not None and not self.view["final"]:
            found |= self.widget._repr_mimebundle_()[0]
        return found

    def close(self) -> None:
        """End the updates."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._over.wait(EVERY) and not self.view["final"]:
            try:
                self.update()
                failures = 0
            except Exception as error:
                failures += 1
                # The run's folder was deleted, or the kernel ends.
                if failures == _PATIENCE or not self._folder.exists():
                    logger.debug("the view of run %s ends: %s", self._folder.run_id, error)
                    return

    def update(self) -> None:
        """Read the run, and send its view if it has changed."""
        found = view_of(self._folder)
        if found == self.view:
            return
        before, self.view = self.view, found
        try:
            if self.widget is not None:
                self.widget.view = found
            # At the end, static HTML replaces the widget, and remains in the saved notebook.
            if self.widget is None or found["final"]:
                self._publish(self.bundle())
        except Exception:
            self.view = before  # the next update sends the change
            raise
