"""The way in which a run reads a dataset."""
