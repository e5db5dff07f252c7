"""Algorithms over any Link, and the arithmetic that every wire shares."""

from farandole.core.collectives.over import over as over
