"""A PyTorch model, trained on this rank's rows: ``trainer.train``."""
