"""Python environments of runs."""
