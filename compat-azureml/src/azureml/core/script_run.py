"""Submitted runs of scripts."""
