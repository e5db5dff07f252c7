"""What a rank does: one module for each framework, without Spark."""
