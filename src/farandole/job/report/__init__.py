"""What ranks and driver tell each other: outcomes, messages, pickled functions and results; and the
keys of the store under which they do.
"""
