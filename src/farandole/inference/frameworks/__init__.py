"""A module for each kind of model: ``pack`` makes a file of it, ``opened`` opens one, ``wrapped``
takes the object.
"""
