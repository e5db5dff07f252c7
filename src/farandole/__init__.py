"""Farandole: one training function or script, run on N processes as if on one."""

__version__ = "0.1.0"
