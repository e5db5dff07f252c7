"""The common part of all frameworks: the public collectives, written once."""
