"""Parameter servers, which hold a centre of weights: ranks push changes to it and pull the weights.

``clocks`` decides which pushes count and which ranks wait (pure); ``centre`` holds the weights of
one ``group`` of ranks; ``layout`` distributes tensors over servers; ``wire`` transfers them.
``server`` and ``client`` are the two ends; ``replicas`` are servers that receive every event.
``python -m farandole.core.ps`` runs a server process.
"""
