"""Algorithms over any Link, and the arithmetic that every wire shares."""
