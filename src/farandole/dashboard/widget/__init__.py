"""Runs in notebooks: a live view in a cell, and static HTML for saved notebooks.

The kernel reads the run's folder and sends its changes. No server, port or token is needed, and no
output contains a secret or a path outside the run.
"""

from farandole.dashboard.widget.show import show_run as show_run
