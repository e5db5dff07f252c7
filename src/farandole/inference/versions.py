"""Identities of models: the version of a file that may be overwritten, and a digest of content that
is equal in all processes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import types
import zipfile
from typing import Any

import cloudpickle

from farandole.base.optional import require
from farandole.base.pickled import dumps
from farandole.data import paths
from farandole.inference.value_identity import digest, parts_of_function, value_digest

# entries to ignore: Keras's has the time; torch's have checksums or source lines
_CHANGING = ("metadata.json", ".data/serialization_id", ".debug_pkl")
_CONSTANT = b": Final["  # in TorchScript's code
_FACTS = (
    "ETag",
    "etag",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
    "generation",
    "size",
)


def version(path: str) -> str:
    """Return size and time of a file, or of all files in a folder; for a URL the file system's
    metadata (etag, time, size). "" if they are unknown.
    """
    local = paths.local(path)
    try:
        if local is None:
            return _remote(path)
        return "missing" if not os.path.exists(local) else _digest(sorted(_local(local)))
    except Exception:  # raised by any file system; opening the model reports the error better
        return ""


def _local(path: str) -> list[tuple[Any, ...]]:
    files = (
        [path]
        if not os.path.isdir(path)
        else [os.path.join(top, n) for top, _, ns in os.walk(path) for n in ns]
    )
    facts = [(os.path.relpath(name, path), os.stat(name)) for name in files]
    return [(name, each.st_size, each.st_mtime_ns) for name, each in facts]


def _remote(path: str) -> str:
    system, inside = require("fsspec.core", "loading the model").url_to_fs(path)
    system.invalidate_cache()
    info = system.info(inside)
    files = system.find(inside, detail=True) if info["type"] == "directory" else {inside: info}
    facts = [
        (name, [(key, str(each[key])) for key in _FACTS if key in each])
        for name, each in sorted(files.items())
    ]
    # a size alone identifies nothing
    return _digest(facts) if all(len(each) > 1 for _, each in facts) else ""


def _digest(facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def identity(content: bytes) -> dict[str, str]:
    """Return the identity of pickled or saved content as digests of its parts, by name. They ignore
    differences between files of equal models: random ids of classes, the time of saving, addresses
    in Keras's configuration, and the order of constants in TorchScript.
    """
    return {name: digest(part) for name, part in _parts(content).items()}


def identity_of(value: Any) -> dict[str, str]:
    """Return the identity of a function, class or module of PyTorch as digests of its parts, by
    name. Unlike pickles, it does not depend on the order of sets.
    """
    try:
        if isinstance(value, types.FunctionType):
            return parts_of_function(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.nn.Module):
            tensors = [*value.named_parameters(), *value.named_buffers()]
            return {
                "weights": digest(*(name + value_digest(tensor) for name, tensor in tensors)),
                "layers and settings": value_digest(value, [tensor for _, tensor in tensors]),
            }
        return {"object": value_digest(value)}
    except Exception:  # an object that only its own pickler reduces
        return identity(dumps(value))


def identity_of_model(model: Any, packed: bytes) -> dict[str, str]:
    """Return the identity of a model. ``packed``: the content of its file."""
    own_pickle = not zipfile.is_zipfile(io.BytesIO(packed)) or _is_plain_module(model)
    return identity_of(model) if own_pickle else identity(packed)


def _is_plain_module(model: Any) -> bool:
    """Return whether a PyTorch module is pickled, rather than saved as TorchScript."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(model, torch.nn.Module)
        and not isinstance(model, torch.jit.ScriptModule)
        and not hasattr(model, "_flatten_layers")  # Keras's
    )


def _parts(content: bytes) -> dict[str, bytes]:
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return {"content": _without_numbers(content)}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith(_CHANGING))
        return {name: _normalized(name, archive.read(name)) for name in names}


def _normalized(name: str, content: bytes) -> bytes:
    """Return a file of an archive without the differences between equal models."""
    if name.endswith("pkl"):
        return _without_numbers(content)
    if name.endswith("config.json"):
        return json.dumps(_without_addresses(json.loads(content)), sort_keys=True).encode()
    if "/code/" in name and name.endswith(".py"):  # a set's order is the order of constants
        lines = content.splitlines(keepends=True)
        constants = iter(sorted(line for line in lines if _CONSTANT in line))
        return b"".join(next(constants) if _CONSTANT in line else line for line in lines)
    return content


def _without_addresses(config: Any) -> Any:
    if isinstance(config, dict):
        kept = {name: each for name, each in config.items() if name != "shared_object_id"}
        return {name: _without_addresses(each) for name, each in kept.items()}
    return [_without_addresses(each) for each in config] if isinstance(config, list) else config


def _without_numbers(content: bytes) -> bytes:
    drawn = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
    for number in drawn.values():
        content = content.replace(number.encode(), b"")
    return content
