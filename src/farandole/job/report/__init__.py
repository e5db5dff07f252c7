"""Reports between ranks and driver: outcomes, messages, progress, figures, pickled functions
and results; and their keys in the store.
"""
