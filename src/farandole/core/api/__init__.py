"""The public collectives and helpers, shared by all frameworks."""
