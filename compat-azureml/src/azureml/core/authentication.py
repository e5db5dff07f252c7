"""Credentials, which a local workspace does not need."""
