"""Commits that survive the loss of their rank: copies on other hosts, and files.

``keeper`` manages both for the state of ``elastic.run``. Jobs that use neither never load this
package.
"""
