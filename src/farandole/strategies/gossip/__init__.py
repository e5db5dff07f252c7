"""Averages with neighbours on a graph: ``gossip`` synchronously, ``gossip_async`` in the
background.
"""
