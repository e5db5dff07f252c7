"""Elastic training with JAX: ``hvd.elastic``."""

from __future__ import annotations

from farandole.core.api.elastic import run as run
from farandole.core.api.state import ObjectState as ObjectState
from farandole.data import ElasticSampler as ElasticSampler
from farandole.jax.state import JaxState as JaxState

__all__ = ["ElasticSampler", "JaxState", "ObjectState", "run"]
