"""Training: sweeps over hyperparameters."""
