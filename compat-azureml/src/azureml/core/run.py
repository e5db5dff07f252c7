"""Runs, inside and outside of their programs."""
