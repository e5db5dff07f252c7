"""PyTorch in a job with a fixed global batch: gradients by share, and other parts of the arithmetic
that must not depend on the number of ranks.
"""
