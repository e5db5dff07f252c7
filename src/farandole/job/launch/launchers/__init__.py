"""Launchers: one file per cluster, which starts workers there and identifies them."""
