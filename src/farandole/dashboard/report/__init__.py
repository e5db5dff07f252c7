"""Reports: one or several runs in one file, for a ticket or a paper.

``content`` collects the parts of a document, and ``as_html`` and ``as_markdown`` format them. A
report has no token, no path of the host outside the run, and loads nothing.
"""
