"""Datasets and paths of data."""
