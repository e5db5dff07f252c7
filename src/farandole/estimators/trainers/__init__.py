"""Training on a rank, without Spark: one module for each framework."""
