"""The comparison of runs: their cost, their differences, and reasons why they are not comparable.

``report.compare`` reads the folders. ``equal_value`` and ``fairness`` are pure functions of the
measures and curves.
"""

from farandole.jobs.comparison.report import Comparison as Comparison
from farandole.jobs.comparison.report import compare as compare
