"""Functions sent by value keep the name of their file, whatever version of cloudpickle sends
them.
"""

from __future__ import annotations

import builtins
from types import FunctionType
from typing import Any
from urllib.parse import urlsplit

import cloudpickle
import pytest

from farandole.base import pickled

CELL = "/tmp/ipykernel_1/2.py"
SOURCE = """
def outer(values):
    def inner(value):
        return [scale(each) for each in value]
    return inner(values), inner

def scale(value):
    return 2 * value

class Model:
    def forward(self, value):
        return outer(value)[0]
"""


def test_code_keeps_its_file_also_that_within() -> None:
    cell: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    exec(compile(SOURCE, CELL, "exec"), cell)
    outer, model = cloudpickle.loads(pickled.dumps((cell["outer"], cell["Model"]())))
    doubled, inner = outer([1, 2])
    assert doubled == [2, 4] == model.forward([1, 2])
    functions: list[FunctionType] = [outer, inner, outer.__globals__["scale"], type(model).forward]
    assert [function.__code__.co_filename for function in functions] == [CELL] * 4
    assert [function.__code__.co_firstlineno for function in functions] == [2, 3, 7, 11]


def test_importable_objects_are_pickled_by_name() -> None:
    assert cloudpickle.loads(pickled.dumps(SOURCE.splitlines))() == SOURCE.splitlines()
    assert cloudpickle.loads(pickled.dumps(pickled.dumps)) is pickled.dumps


def test_parametrized_modules_of_torch_are_those_that_were_sent() -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.utils import parametrizations, parametrize

    model = torch.nn.Sequential(
        parametrizations.weight_norm(torch.nn.Linear(3, 4)),
        parametrizations.spectral_norm(torch.nn.Linear(4, 4)),
        parametrizations.orthogonal(torch.nn.Linear(4, 2)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sent, stepping = cloudpickle.loads(pickled.dumps((model, optimizer)))
    x = torch.randn(5, 3)
    assert repr(sent) == repr(model)
    assert [name for name, _ in sent.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert all(
        one is other
        for one, other in zip(sent.parameters(), stepping.param_groups[0]["params"], strict=True)
    )
    with parametrize.cached():
        assert torch.equal(sent.eval()(x), model.eval()(x))
    sent.load_state_dict(model.state_dict())
    again = cloudpickle.loads(pickled.dumps(sent))
    parametrize.remove_parametrizations(sent[0], "weight")
    assert type(sent[0]) is torch.nn.Linear
    assert torch.equal(again(x), model(x))


CACHES = """
import functools

@functools.lru_cache(maxsize=7)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

class Rows:
    def __init__(self):
        self.computed = 0

    @functools.cached_property
    def count(self):
        self.computed += 1
        return 5

    @functools.cache
    def plus(self, n):
        return self.count + n

def outer():
    @functools.cache
    def inner(n):
        return 2 * n
    return inner
"""


def test_caches_of_functools_go_along_empty() -> None:
    cell: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    exec(compile(CACHES, CELL, "exec"), cell)
    assert cell["fibonacci"](9) == 34
    sent = (cell["fibonacci"], cell["Rows"], cell["outer"](), urlsplit)
    fibonacci, rows, inner, imported = cloudpickle.loads(pickled.dumps(sent))
    assert (fibonacci.cache_info().currsize, fibonacci(60)) == (0, 1548008755920)
    assert fibonacci.cache_info().misses == 61, "the function's own calls are cached, too"
    assert fibonacci.cache_parameters() == {"maxsize": 7, "typed": False}
    made = rows()
    assert (made.count, made.count, made.computed, made.plus(1), inner(4)) == (5, 5, 1, 6, 8)
    assert imported is urlsplit, "one that a module has is that module's"
