"""Which model it is: of files, folders, and what was pickled."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

from farandole.inference.models import pack
from farandole.inference.versions import identity, identity_of, version


def test_the_version_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    weights = tmp_path / "variables" / "data"
    weights.write_bytes(b"1")
    os.utime(weights, ns=(5, 5))
    first = version(str(tmp_path))
    assert version(str(tmp_path)) == first
    assert (
        pack(weights.rename(weights.with_suffix(".pt"))).identity
        != pack(weights.with_suffix(".onnx")).identity
    )
    weights.with_suffix(".pt").rename(weights)
    assert version(str(tmp_path)) == first
    os.utime(weights, ns=(6, 6))
    assert version(str(tmp_path)) != first


def function(factor: float) -> Any:
    class Twice:  # cloudpickle draws a number for each such class
        def of(self, x: Any) -> Any:
            return 2 * x * factor

    return lambda x: Twice().of(x)


def test_the_identity_of_functions_does_not_depend_on_class_ids() -> None:
    # a class that is gone has no number
    functions = [function(factor) for factor in (1.0, 1.0, 2.0)]
    one, same, other = map(pack, functions)
    assert one.digest != same.digest
    assert identity(one.content) == identity(same.content) == identity_of(function(1.0))
    assert identity(one.content) != identity(other.content)


def archive(**files: bytes) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as made:
        for name, content in files.items():
            made.writestr(name.replace("_", "."), content)
    return found.getvalue()


def test_the_time_at_which_keras_saved_a_model_is_no_part_of_it() -> None:
    one = archive(config_json=b"layers", metadata_json=b"today")
    assert identity(one) == identity(archive(metadata_json=b"tomorrow", config_json=b"layers"))
    assert identity(one) != identity(archive(config_json=b"others", metadata_json=b"today"))
