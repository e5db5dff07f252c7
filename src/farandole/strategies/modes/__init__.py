"""Ways to keep the weights of ranks together that each step with gradients of their own. One file
each; see ``contracts.Strategy``.
"""
