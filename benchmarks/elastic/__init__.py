"""Benchmarks of elastic jobs."""
