"""A matplotlib backend for ranks of a job started from a notebook cell: rank 0's figures appear in
the cell.

``plt.show()`` sends the figures to the driver as PNG images. Figures still open when the function
returns are then sent, as at the end of a cell. Other ranks show no figures. The driver sets
``MPLBACKEND`` to this module.
"""

from __future__ import annotations

import io
from typing import Any

from matplotlib import _pylab_helpers
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from farandole.job.report import messages


class FigureManager(FigureManagerBase):
    """One open figure."""

    def show(self) -> None:
        picture = io.BytesIO()
        self.canvas.print_figure(picture, format="png", bbox_inches="tight")
        messages.figure(picture.getvalue())

    @classmethod
    def pyplot_show(cls, *, block: bool | None = None) -> None:
        """Send all open figures and close them. ``block`` has no effect, because a rank's
        window is not visible.
        """
        for manager in _pylab_helpers.Gcf.get_all_fig_managers():
            manager.show()
            _pylab_helpers.Gcf.destroy(manager)


class FigureCanvas(FigureCanvasAgg):  # type: ignore[misc]
    """The class that matplotlib looks for in a backend."""

    manager_class: Any = FigureManager
