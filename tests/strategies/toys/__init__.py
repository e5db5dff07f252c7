"""Plugins as other distributions write them: one file each."""
