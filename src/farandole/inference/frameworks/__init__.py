"""The supported frameworks. Each has an entry here and a module with three functions: ``pack``
saves a model to a file, ``load`` opens such a file, and ``wrap`` wraps a loaded model.

The rules that recognize a model are in the entry, because the module imports the framework, which
recognition must not do.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any, NamedTuple

from farandole.data import paths
from farandole.errors import SettingsError


class Framework(NamedTuple):
    """A framework.

    ``module``: the module with ``pack``, ``load`` and ``wrap``. ``suffixes``: suffixes of model
    files. ``folder``: the file that marks a folder as a model. ``classes``: a pattern for the full
    names of a model's base classes. ``attribute``: an attribute that a model must also have, if
    set. ``cure``: appended to the error for a file that cannot be opened. ``own_code``: whether
    errors on opening come from the user's code.
    """

    module: str
    suffixes: tuple[str, ...] = ()
    folder: str = ""
    classes: str = ""
    attribute: str = ""
    cure: str = ""
    own_code: bool = False


FRAMEWORKS: dict[str, Framework] = {
    "torch": Framework(
        module=f"{__name__}.torch",
        suffixes=(".pt", ".pth", ".pt2", ".ts", ".bin"),
        classes=r"torch(\..+)?\.(Module|ExportedProgram)",
    ),
    "keras": Framework(
        module=f"{__name__}.keras",
        suffixes=(".keras", ".h5"),
        classes=r"(tf_keras|([^.]+\.){0,2}keras)(\..+)?\.Model",
        cure=(
            ". For custom classes and functions: custom_objects={name: object}. For a file with"
            " functions from a trusted author: trust_pickle=True (--trust-pickle)"
        ),
    ),
    "onnx": Framework(
        module=f"{__name__}.onnx",
        suffixes=(".onnx",),
        classes=r"onnx(\..+)?\.ModelProto",
    ),
    "tensorflow": Framework(
        module=f"{__name__}.tensorflow",
        folder="saved_model.pb",
        classes=r"tensorflow(\..+)?\.[^.]+",
        attribute="signatures",
    ),
    "function": Framework(module=f"{__name__}.function", own_code=True),
}


def module_of(kind: str) -> Any:
    """Import the module of a framework."""
    return importlib.import_module(FRAMEWORKS[kind].module)


def kind_of(model: Any) -> str:
    """Return the name of a model's framework. Raises SettingsError if it has none."""
    for base in type(model).__mro__:
        name = f"{base.__module__}.{base.__name__}"
        for kind, framework in FRAMEWORKS.items():
            if (
                framework.classes
                and re.fullmatch(framework.classes, name)
                and (not framework.attribute or hasattr(model, framework.attribute))
            ):
                return kind
    if callable(model):
        return "function"
    method = (
        " (here its method: model.predict)" if callable(getattr(model, "predict", None)) else ""
    )
    raise SettingsError(
        f"model={model!r:.80} is a {type(model).__name__}. Pass a torch module, a Keras or ONNX"
        f" model, a function on arrays{method}, a function without arguments that loads one of"
        " these, or the path of a file"
    )


def kind_of_path(path: str) -> str:
    """Return the name of the framework of a file or folder. Raises SettingsError if it is
    unknown.
    """
    folders = {framework.folder: kind for kind, framework in FRAMEWORKS.items() if framework.folder}
    name = path.rstrip("/")
    local = paths.local(name)
    if local and os.path.isdir(local):
        for marker, kind in folders.items():
            if os.path.exists(os.path.join(local, marker)):
                return kind
        raise SettingsError(
            f"model={path!r} is a folder without {' or '.join(folders)}. Pass a SavedModel, or a"
            " file"
        )
    suffix = os.path.splitext(name)[1].lower()
    if not suffix:  # a folder on a remote file system
        return "tensorflow"
    suffixes = {each: kind for kind, framework in FRAMEWORKS.items() for each in framework.suffixes}
    if suffix in suffixes:
        return suffixes[suffix]
    raise SettingsError(
        f"model={path!r} has the unknown suffix {suffix!r}; known: {', '.join(suffixes)}, and the"
        " folder of a SavedModel. For other files pass a function that loads the model"
    )
