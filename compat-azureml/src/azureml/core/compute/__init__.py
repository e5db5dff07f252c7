"""Kinds of compute targets."""
