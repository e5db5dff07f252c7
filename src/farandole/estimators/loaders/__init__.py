"""Trained models as functions of arrays for Spark's workers: one module for each framework."""
