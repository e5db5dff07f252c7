"""Preemption notices: warnings that a host will soon leave the job."""
