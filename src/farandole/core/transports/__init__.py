"""Transports between ranks. One module each, with a Transport, or a Link for
``collectives.over``.
"""
