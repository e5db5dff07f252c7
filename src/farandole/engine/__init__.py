"""Agreement: which collectives run, in which order, on all ranks."""
