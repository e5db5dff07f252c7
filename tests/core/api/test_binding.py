"""The binding kit over plain arrays, which is ``core.api`` alone."""

from __future__ import annotations

import numpy as np

from tests.kits.binding import Binding, BindingKit


class TestBinding(BindingKit):
    binding = Binding("farandole.numpy", make=np.array, read=np.asarray)
