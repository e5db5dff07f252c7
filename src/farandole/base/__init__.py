"""Shared basics: types, contracts between packages, the log, threads and pickling."""
