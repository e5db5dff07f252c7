"""Compute targets: the places where runs are executed."""
