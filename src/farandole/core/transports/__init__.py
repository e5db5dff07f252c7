"""Wires: carriers of bytes between ranks. One file each: a Transport, or a Link for
``collectives.over``.
"""
