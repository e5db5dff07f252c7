"""Datastores: named folders and URLs."""
