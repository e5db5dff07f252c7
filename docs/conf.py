"""The documentation site: ``make docs`` builds it. Pages are Markdown, readable without it."""

project = "Farandole"
author = "The Farandole authors"
copyright = "The Farandole authors. Apache License 2.0"

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_build"]
nitpicky = True

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# A block's words after its language are for the tests that run it (tests/test_docs.py).
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "Farandole"
html_static_path: list[str] = []
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "
