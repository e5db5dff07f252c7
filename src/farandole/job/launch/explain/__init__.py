"""Determines which rank caused a job's failure: pure functions from events to a verdict."""
