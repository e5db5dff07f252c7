"""The page over the runs, reports of runs, and the widget of notebooks."""
