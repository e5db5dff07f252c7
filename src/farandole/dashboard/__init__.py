"""The browser page of all runs, reports of runs, and the notebook widget."""
