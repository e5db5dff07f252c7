"""Benchmarks of Farandole and of other installed libraries: ``farandole bench``, or ``python -m
benchmarks``.
"""
