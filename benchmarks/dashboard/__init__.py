"""The dashboard's server under load: ``python -m benchmarks.dashboard``."""
