"""Algorithms over any Link, and shared helpers."""

from farandole.core.collectives.over import over as over
