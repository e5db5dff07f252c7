"""What ranks report to the driver, and the driver to ranks: outcomes, messages, progress, figures,
pickled functions and results; and the keys of the store for them.
"""
