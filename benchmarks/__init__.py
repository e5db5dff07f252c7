"""What Farandole costs, beside what else is installed: ``farandole bench``, or ``python -m benchmarks``."""
