"""Constructors of datasets."""
