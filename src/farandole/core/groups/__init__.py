"""Groups of ranks that call collectives in the same order, as in torch.distributed.

No negotiation is needed: each group has its own transport and runs its calls in sequence
(``calls``), after a check that all ranks make the same call (``checked``). Point-to-point messages
bypass this queue (``messages``).
"""
