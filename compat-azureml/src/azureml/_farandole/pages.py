"""Addresses of Farandole's dashboard, and tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping
from urllib.parse import quote, urlencode


def run_url(run_id: str) -> str:
    """Return the address of a run, without a token."""
    return f"{_address()}/#/run/{run_id}"


def file_url(run_id: str, path: str) -> str:
    """Return the address of a file, without a token; ``path`` is relative to the run's folder."""
    return f"{_address()}/api/run/{quote(run_id)}/file?{urlencode({'path': path, 'raw': 1})}"


def _address() -> str:
    """Return the default address of ``farandole dashboard``."""
    from farandole.dashboard.commands.dashboard import PORT

    return f"http://127.0.0.1:{PORT}"


def experiment_url(name: str) -> str:
    """Return the address of an experiment, without a token."""
    return f"{_address()}/#/runs?experiment={name}"


def as_table(facts: Mapping[str, str]) -> str:
    """Return facts as an HTML table with one row; a value that is a URL becomes a link."""
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in facts)
    cells = "".join(f"<td>{_cell(text)}</td>" for text in facts.values())
    return f'<table style="width:100%"><tr>{heads}</tr><tr>{cells}</tr></table>'


def _cell(text: str) -> str:
    shown = html.escape(text)
    if text.startswith(("http://", "https://")):
        return f'<a href="{shown}" target="_blank" rel="noopener">{shown}</a>'
    return shown
