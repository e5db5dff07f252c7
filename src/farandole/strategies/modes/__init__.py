"""Strategies that exchange weights between ranks that step with their own gradients, one file each.
See ``contracts.Strategy``.
"""
