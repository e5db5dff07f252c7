"""Errors that type checkers must find: one in each line that ends with ``# wrong``. See
``torch_program``.
"""

import torch

import farandole
import farandole.torch as hvd


def train(steps: int) -> str:
    return str(hvd.allreduce(3))  # wrong


hvd.allreduce(torch.ones(1), nam="x")  # wrong
hvd.DistributedOptimizer(torch.nn.Linear(1, 1))  # wrong
hvd.poll("x")  # wrong
number: list[int] = farandole.run(train, (1,))  # wrong
hvd.rnak()  # wrong
