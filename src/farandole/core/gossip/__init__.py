"""Pairwise averages of weights in the background, and averages by quorum."""
