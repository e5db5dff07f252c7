"""Reports: one or several runs in one file, for a ticket or a paper.

``content`` collects the parts of a document, and ``as_html`` and ``as_markdown`` format them. A
report contains no token and no host path outside the run, and loads nothing.
"""
