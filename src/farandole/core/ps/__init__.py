"""Parameter servers: they hold a centre of weights, to which ranks push and from which they pull.

``clocks`` decides which pushes count and who waits (pure); ``centre`` holds the numbers of one
``group`` of ranks; ``layout`` deals tensors to servers; ``wire`` moves them; ``server`` and
``client`` are the two ends, and ``replicas`` are other servers that are told all. ``python -m
farandole.core.ps`` is a server process.
"""
