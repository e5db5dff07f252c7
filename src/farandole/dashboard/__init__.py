"""The page of all runs in a browser, reports of runs, and the widget for notebooks."""
