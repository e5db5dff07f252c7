"""Averages with neighbours on a graph: ``gossip`` in step, ``gossip_async`` in the background."""
