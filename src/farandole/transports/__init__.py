"""Wires: what carries bytes between ranks. One file per wire; each is a Transport, or a Link for ``collectives.over``."""
