"""The server of the page under load: ``python -m benchmarks.dashboard``."""
