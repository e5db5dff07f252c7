"""The observers of an engine: timeline, autotune, stall check, and whether ranks that began alike
learned together.
"""
