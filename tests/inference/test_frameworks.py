"""A framework is one module and one line of the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farandole.errors import SettingsError
from farandole.inference.frameworks import FRAMEWORKS, Framework, kind_of
from farandole.inference.models import Execution, open_model, pack
from tests.inference import toy_framework
from tests.inference.toy_framework import Scale

X = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    name = toy_framework.__name__
    line = Framework(module=name, suffixes=(".scale",), classes=rf"{name}\.Scale")
    monkeypatch.setitem(FRAMEWORKS, "toy", line)


@pytest.mark.usefixtures("toy")
def test_a_model_of_a_new_framework_is_packed_and_opened() -> None:
    class Tripled(Scale):
        def __init__(self) -> None:
            super().__init__(3.0)

    packed = pack(Tripled())
    assert (packed.kind, packed.returns) == ("toy", "array<float>")
    np.testing.assert_array_equal(open_model(packed, Execution(1))({"x": X}), 3 * X)


@pytest.mark.usefixtures("toy")
def test_a_file_of_a_new_framework_is_known_by_its_suffix(tmp_path: Path) -> None:
    path = tmp_path / "double.scale"
    path.write_text("2")
    packed = pack(str(path))
    assert packed.kind == "toy"
    np.testing.assert_array_equal(open_model(packed, Execution(1))({"x": X}), 2 * X)


@pytest.mark.usefixtures("toy")
def test_a_function_may_load_a_model_of_a_new_framework() -> None:
    packed = pack(lambda: Scale(4.0))
    assert packed.kind == "function"
    np.testing.assert_array_equal(open_model(packed, Execution(1))({"x": X}), 4 * X)


def test_without_its_line_a_framework_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"Scale"):
        kind_of(Scale(1.0))
    with pytest.raises(SettingsError, match=r"\.scale"):
        pack(str(tmp_path / "double.scale"))
