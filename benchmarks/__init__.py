"""The cost of Farandole, compared with other installed libraries: ``farandole bench``, or ``python
-m benchmarks``.
"""
