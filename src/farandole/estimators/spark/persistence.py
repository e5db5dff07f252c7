"""``write()`` and ``read()`` of estimators and models: Spark ML's metadata, with all parameters in
one pickle, so that an optimizer keeps its references to the model's parameters.
"""

from __future__ import annotations

import base64
import copy
from typing import Any

import cloudpickle
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)

from farandole.base.log import logger
from farandole.base.pickled import dumps
from farandole.errors import SettingsError

_PARAMS = "params"


class Persistent(MLWritable, MLReadable):  # type: ignore[misc]
    """A mixin for classes of ``Params``. ``pack`` and ``unpack``: convert values that pickle cannot
    handle.
    """

    def write(self) -> Any:
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> Any:
        return _Reader(cls)

    def pack(self, values: dict[str, Any]) -> dict[str, Any]:
        return values

    @classmethod
    def unpack(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values


class _ModelWriter(MLWriter):  # type: ignore[misc]
    def __init__(self, instance: Any) -> None:
        super().__init__()
        self.instance = instance

    def _handleOverwrite(self, path: str) -> None:
        if not hasattr(self.sparkSession, "_jsparkSession"):
            raise SettingsError(
                "overwrite() needs Spark's JVM in this process, which a session of Spark Connect"
                f" does not have. Remove {path}, or save to another path without overwrite()"
            )
        super()._handleOverwrite(path)

    def saveImpl(self, path: str) -> None:
        values = public({param.name: value for param, value in self.instance._paramMap.items()})
        packed = base64.b64encode(dumps(self.instance.pack(values))).decode()
        DefaultParamsWriter.saveMetadata(
            self.instance, path, _context(self), paramMap={_PARAMS: packed}
        )


def public(values: dict[str, Any]) -> dict[str, Any]:
    """Return parameters without file system credentials: a reader of the file may lack access to
    the data.
    """
    kept, dropped = dict(values), False
    if getattr(kept.get("store"), "storage_options", None):
        kept["store"], dropped = copy.copy(kept["store"]), True
        kept["store"].storage_options = {}
    if "storage_options" in (kept.get("data_options") or {}):
        kept["data_options"], dropped = dict(kept["data_options"]), True
        del kept["data_options"]["storage_options"]
    if dropped:
        logger.warning(
            "storage_options are not written, because they may contain secrets. Set them again"
            " after reading"
        )
    return kept


class _Reader(MLReader):  # type: ignore[misc]
    def __init__(self, cls: Any) -> None:
        super().__init__()
        self.cls = cls

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, _context(self))
        # a program's subclass may have constructor arguments that are not parameters
        instance = self.cls()
        packed = metadata["paramMap"].get(_PARAMS)
        values = packed and self.cls.unpack(cloudpickle.loads(base64.b64decode(packed)))
        if values is None or not all(instance.hasParam(name) for name in values):
            kind = metadata["class"]
            raise SettingsError(
                f"{path} contains a {kind}, which {self.cls.__name__} cannot read. Use"
                f" {kind.rpartition('.')[2]}.load(path); read a pipeline with its own class"
                " (PipelineModel.load)"
            )
        instance._set(**values)
        instance._resetUid(metadata["uid"])
        return instance


def _context(of: Any) -> Any:
    """Return the Spark context; for Spark Connect, which has none, the session, which Spark 4 also
    accepts.
    """
    session = of.sparkSession
    return getattr(session, "_sc", None) or session
