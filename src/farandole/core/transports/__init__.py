"""Transports between ranks: one module each, with a Transport or a Link for
``collectives.over``.
"""
