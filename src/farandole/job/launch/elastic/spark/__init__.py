"""Elastic jobs on Spark: tasks that wait for processes."""
