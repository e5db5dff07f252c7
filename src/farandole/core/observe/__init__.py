"""Observers of an engine: timeline, autotune, stall check, and counts of exchanged parameters and
gradients.
"""
