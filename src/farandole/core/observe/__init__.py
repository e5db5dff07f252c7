"""Observers of an engine: timeline, autotune, stall check, and the counts of exchanged parameters
and gradients.
"""
