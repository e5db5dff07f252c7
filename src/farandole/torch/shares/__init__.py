"""PyTorch in a job with a fixed global batch: gradients by share, and what else has to be the same
for any number of ranks.
"""
