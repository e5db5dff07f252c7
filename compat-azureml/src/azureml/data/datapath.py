"""Paths in datastores."""
