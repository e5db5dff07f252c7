"""The view of a run in a notebook."""
