"""The layers below the frameworks: the shared API, the engine, the transports and their
algorithms.
"""
