"""The messages between ranks and driver: outcomes, notes, pickled functions and results; and the keys of the
store under which they do."""
