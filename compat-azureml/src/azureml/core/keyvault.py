"""Secrets of a workspace."""
