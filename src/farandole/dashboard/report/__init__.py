"""Reports: one run, or several, as one file for a ticket or a paper.

``content`` collects a document, ``as_html`` and ``as_markdown`` write it. A report has no token, no
path of the host outside the run, and loads nothing.
"""
