"""Implementations by name, and the hook that PyTorch calls."""
