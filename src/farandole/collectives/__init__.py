"""Algorithms over any Link, and the arithmetic that every wire shares."""

from farandole.collectives.over import over as over
