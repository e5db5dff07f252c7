"""Experiments: named groups of runs."""
