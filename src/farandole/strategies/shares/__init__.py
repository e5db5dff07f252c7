"""The shares of a fixed global batch: sums, random streams and batches that are the same for any
number of ranks.

The global batch of a job consists of V shares (``--fixed-global-batch``). Each rank computes a
contiguous block of them, one after another. Gradients of shares are summed in one binary tree over
the V shares, so that the sum has the same bits for any number of ranks.
"""

from farandole.strategies.shares.blocks import Shares as Shares
from farandole.strategies.shares.blocks import block as block
