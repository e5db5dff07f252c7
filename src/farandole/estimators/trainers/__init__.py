"""The training on a rank: one module for each framework, without Spark."""
