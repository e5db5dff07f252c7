"""Functions sent by value keep the name of their file, whatever version of cloudpickle sends them."""

from __future__ import annotations

import builtins
from types import FunctionType
from typing import Any

import cloudpickle

from farandole import pickled

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


def test_what_can_be_imported_goes_by_its_name() -> None:
    assert cloudpickle.loads(pickled.dumps(SOURCE.splitlines))() == SOURCE.splitlines()
    assert cloudpickle.loads(pickled.dumps(pickled.dumps)) is pickled.dumps
