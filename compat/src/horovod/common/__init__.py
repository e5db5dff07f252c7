"""Shared by all bindings."""
