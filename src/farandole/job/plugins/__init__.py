"""Implementations by name, and PyTorch's entry point."""
