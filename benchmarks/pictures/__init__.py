"""Pictures of the documentation, drawn from stored measurements: ``make pictures``."""
