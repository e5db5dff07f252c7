"""One file per cluster: how workers are started there, and how a worker finds out who it is."""
