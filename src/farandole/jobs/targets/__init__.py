"""Targets: the places where runs are executed, one module each."""
