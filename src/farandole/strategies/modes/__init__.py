"""Strategies that exchange weights between ranks which step with their own gradients, one file
each. See ``contracts.Strategy``.
"""
