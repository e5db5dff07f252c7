"""The estimators of ``horovod.spark``."""

from __future__ import annotations

from typing import Any


def by_row(kind: Any, name: str, module: str) -> Any:
    """Farandole's estimator ``kind`` as the class ``name`` of ``module``. Its ``transformation_fn`` takes a row, as
    Horovod's does."""
    return type(kind)(name, (kind,), {"_by_row": True, "__module__": module, "__doc__": kind.__doc__})
