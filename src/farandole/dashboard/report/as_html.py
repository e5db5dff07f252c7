"""A report as one HTML file, without scripts, links or external files."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from farandole.dashboard.report import svg
from farandole.dashboard.report.document import (
    Block,
    Chart,
    Charts,
    Document,
    Output,
    Pairs,
    Pictures,
    Section,
    Table,
    Texts,
)

_COLORS = (
    ("#0067a3", "#64b5f2"),
    ("#b84a00", "#ff9f63"),
    ("#00795a", "#43d0a2"),
    ("#9c3f7f", "#eaa0cf"),
    ("#8c6100", "#f0c24f"),
    ("#5a5fb8", "#aab0ff"),
    ("#1f2733", "#e6e9ee"),
    ("#b3261e", "#ff8f85"),
)
_MODES = (
    "--paper:#fff;--ink:#1a2230;--dim:#566173;--line:#dfe4eb;--sunken:#f3f5f8;--warn:#fdf4e1",
    "--paper:#0f1318;--ink:#e4e8ee;--dim:#9da8b7;--line:#2a323e;--sunken:#171c24;--warn:#33290f",
)
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.8rem;margin:0 0 1rem}h2{font-size:1.25rem;margin:2rem 0 .5rem;
border-bottom:1px solid var(--line)}h3{font-size:1.05rem;margin:1.5rem 0 .5rem}
table{border-collapse:collapse;font-size:.9rem;display:block;overflow-x:auto}
th,td{text-align:left;vertical-align:top;padding:.2rem 1.2rem .2rem 0;overflow-wrap:anywhere}
th{color:var(--dim);font-weight:500}
pre{background:var(--sunken);padding:.8rem;overflow-x:auto;font-size:.8rem;line-height:1.4}
.warning{background:var(--warn);padding:.6rem .8rem}
.grid-of{display:grid;grid-template-columns:repeat(auto-fill,minmax(20rem,1fr));gap:1rem}
figure{margin:0}figure img{max-width:100%;height:auto}figcaption{color:var(--dim);font-size:.85rem}
svg{width:100%;height:auto}svg text{fill:var(--dim);font-size:11px}
svg .title{fill:var(--ink);font-size:13px;font-weight:600}
.grid{stroke:var(--line)}.curve{fill:none;stroke-width:1.6}.band{stroke:none;opacity:.2}
.key{margin-right:1rem}.key::before{content:"";display:inline-block;width:.8em;height:.8em;
margin-right:.3em;background:currentColor}
@media print{body{max-width:none}}
"""


def html(document: Document) -> str:
    """Return the report as HTML."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        " style-src 'unsafe-inline'; img-src data:\">",
        f"<title>{escape(document.title)}</title><style>{_styles()}</style></head><body>",
        f"<h1>{escape(document.title)}</h1>",
        *(_section(each) for each in document.sections),
        "</body></html>\n",
    ]
    return "".join(parts)


def _styles() -> str:
    modes = []
    for mode in range(2):
        rules = "".join(
            f".curve.c{place}{{stroke:{colors[mode]}}}"
            f".band.c{place},.dot.c{place}{{fill:{colors[mode]}}}"
            f".key.c{place}{{color:{colors[mode]}}}"
            for place, colors in enumerate(_COLORS)
        )
        modes.append(f":root{{color-scheme:light dark;{_MODES[mode]}}}{rules}")
    return f"{modes[0]}@media(prefers-color-scheme:dark){{{modes[1]}}}{_STYLE}"


def _section(section: Section) -> str:
    rank = section.level + 1
    blocks = "".join(map(_block, section.blocks))
    return f"<h{rank}>{escape(section.title)}</h{rank}>{blocks}\n"


def _block(block: Block) -> str:
    if isinstance(block, Pairs):
        rows = [
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in block.pairs
        ]
        return f"<table>{''.join(rows)}</table>"
    if isinstance(block, Table):
        return _table(block.rows)
    if isinstance(block, Texts):
        kind = ' class="warning"' if block.warning else ""
        return "".join(f"<p{kind}>{escape(text)}</p>" for text in block.paragraphs)
    if isinstance(block, Output):
        return f"<pre>{escape(block.text)}</pre>"
    if isinstance(block, Charts):
        return f'<div class="grid-of">{"".join(map(_chart, block.charts))}</div>'
    assert isinstance(block, Pictures)
    figures = [
        f'<figure><img src="data:{each.type};base64,{base64.b64encode(each.data).decode()}"'
        f' alt="{escape(each.name)}"><figcaption>{escape(each.name)}</figcaption></figure>'
        for each in block.pictures
    ]
    return f'<div class="grid-of">{"".join(figures)}</div>'


def _chart(chart: Chart) -> str:
    labels = [
        f'<span class="key c{place % svg.COLORS}">{escape(line.label)}</span>'
        for place, line in enumerate(chart.lines)
        if line.label
    ]
    key = f"<figcaption>{''.join(labels)}</figcaption>" if labels else ""
    return f"<figure>{svg.chart(chart)}{key}</figure>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    header = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[1:]
    )
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"
