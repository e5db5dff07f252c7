"""Spark's session, which the driver has and ranks do not."""
