"""The local workspace."""
