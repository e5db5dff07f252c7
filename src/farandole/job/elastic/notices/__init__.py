"""Preemption notices: warnings that a host is about to leave the job."""
