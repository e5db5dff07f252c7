"""Averages of weights between pairs of ranks, in the background."""
