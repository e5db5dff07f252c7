# ruff: noqa -- written as users of Horovod write
"""horovod.run: the program starts its own ranks."""

import horovod
import horovod.torch as hvd
import torch


def train(lr, steps=1):
    hvd.init()
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr), model.named_parameters()
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 2), hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
    return hvd.rank(), model.weight.grad.tolist()


if __name__ == "__main__":
    results = horovod.run(
        train, args=(0.1,), kwargs={"steps": 2}, num_proc=2, hosts="localhost:2", use_gloo=True
    )
    assert results == [(0, [[1.5, 1.5]]), (1, [[1.5, 1.5]])], results
    try:
        horovod.run(lambda: 1 / 0, num_proc=2)
    except RuntimeError as error:
        assert "ZeroDivisionError" in str(error)
        assert "Horovod detected that" in str(error)
    else:
        raise AssertionError("the failure of a rank was not reported")
    print("ran")
