"""The widget of a run. It needs the package anywidget."""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets

_HERE = Path(__file__).parent


class RunWidget(anywidget.AnyWidget):
    """Shows the data of a run's view (see ``view.view_of``)."""

    _esm = (_HERE / "run.js").read_text(encoding="utf-8")
    _css = (_HERE / "run.css").read_text(encoding="utf-8")
    view = traitlets.Dict().tag(sync=True)
