"""Commits that outlive their rank: copies on other hosts, and files.

``keeper`` has both for the state of ``elastic.run``; jobs without them never load this package.
"""
