"""Benchmarks of jobs: submission, queue, tracking."""
