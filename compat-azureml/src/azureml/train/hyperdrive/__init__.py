"""Sweeps over hyperparameters."""
