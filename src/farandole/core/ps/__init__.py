"""Parameter servers, which hold a centre of weights: ranks push changes and pull weights.

``clocks`` decides on pushes and on waiting ranks (pure); ``centre`` holds the weights of one
``group`` of ranks; ``layout`` distributes tensors over servers; ``wire`` transfers them. ``server``
and ``client`` are the two ends; ``replicas`` are servers that receive every event. ``python -m
farandole.core.ps`` runs a server process.
"""
