"""Excludes a package from ``torch.compile``, as ``torch.compiler.disable`` does for functions.

Otherwise Dynamo would trace into the engine. Its list of exclusions exists only once it is
imported, which takes a second, so the list is extended at that moment.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_RULES = "torch._dynamo.trace_rules"


def exclude(package: str) -> None:
    """Exclude ``package`` from compilation: the graph ends before each call into it and continues
    after.
    """
    rules = sys.modules.get(_RULES)
    if rules is None:
        sys.meta_path.insert(0, _WhenImported(package))
    else:
        _extend(rules, package)


def _extend(rules: ModuleType, package: str) -> None:
    add = getattr(rules, "add", None)  # missing before PyTorch 2.1
    if add is not None:
        add(package)


class _WhenImported(MetaPathFinder):
    """An import hook that finds no module itself: it adds the package to the rules once they are
    imported.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _RULES:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _extend(module, self._package)

        loader.exec_module = exec_module
        return spec
