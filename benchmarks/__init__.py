"""The cost of Farandole, beside other installed libraries: ``farandole bench``, or ``python -m
benchmarks``.
"""
