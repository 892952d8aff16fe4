"""The frame of a self-contained page: its style, and the pieces that pages are made of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --quiet: #5b6875; --paper: #ffffff; --card: #f4f6f8; --rule: #dfe4e9;
  --s1: #2f6fb7; --s2: #d9822b; --s3: #3a9a78; --s4: #8a5fbf; --band: #fdf0d5; --warn: #a33b20; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --quiet: #9aa7b4; --paper: #14191f; --card: #1d242c;
  --rule: #303a45; --s1: #6aa5e8; --s2: #f0a65a; --s3: #62c49d; --s4: #b895e6; --band: #3a3222; --warn: #f08d6f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 820px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 6px; } h2 { font-size: 19px; margin: 44px 0 4px; }
p { margin: 6px 0 12px; } .quiet { color: var(--quiet); } .warn { color: var(--warn); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(136px, 1fr)); gap: 12px; margin: 22px 0 8px; }
.card { background: var(--card); border-radius: 10px; padding: 12px 14px; }
.card b { display: block; font-size: 20px; line-height: 1.3; }
.card span { display: block; color: var(--quiet); font-size: 13.5px; line-height: 1.4; }
svg { width: 100%; height: auto; margin: 10px 0 4px; font-size: 12.5px; }
svg text { fill: var(--ink); } svg .label { fill: var(--quiet); } svg .bandtext { fill: var(--quiet); }
svg .grid { stroke: var(--rule); fill: none; } svg .axis { stroke: var(--quiet); fill: none; }
svg .band { fill: var(--band); } svg .mark { stroke: var(--ink); stroke-dasharray: 2 4; fill: none; }
svg .marktext { font-weight: 600; } svg .chosen { font-weight: 700; }
svg .line { fill: none; stroke-width: 2.25; stroke-linejoin: round; } svg .dot { stroke: var(--paper); stroke-width: 2; }
svg .s0 { fill: var(--ink); } svg .line.s0 { stroke: var(--ink); fill: none; }
svg .s1.line { stroke: var(--s1); } svg .s1.bar, svg .s1.dot, svg .s1.name { fill: var(--s1); }
svg .s2.line { stroke: var(--s2); } svg .s2.bar, svg .s2.dot, svg .s2.name { fill: var(--s2); }
svg .s3.line { stroke: var(--s3); } svg .s3.bar, svg .s3.dot, svg .s3.name { fill: var(--s3); }
svg .s4.line { stroke: var(--s4); } svg .s4.bar, svg .s4.dot, svg .s4.name { fill: var(--s4); }
svg .name, svg .marktext { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
svg .name { font-weight: 600; } svg .line.wide { stroke-width: 7; stroke-linecap: round; opacity: .45; }
td code { white-space: pre-line; } td:last-child { min-width: 7em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14.5px; margin: 8px 0; }
th { text-align: left; font-weight: 600; color: var(--quiet); border-bottom: 1px solid var(--rule); padding: 4px 12px 4px 0; }
td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.r, th.r { text-align: right; font-variant-numeric: tabular-nums; } td.r { white-space: nowrap; }
tr.best td { font-weight: 650; }
code { font: 13.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; } footer { margin-top: 48px; font-size: 13.5px; }
@media print { body { background: #fff; } h2 { break-after: avoid; } svg, table { break-inside: avoid; } }
"""


def page(title: str, body: Sequence[str]) -> str:
    """One file that needs nothing else."""
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n" + "\n".join(body)
            + "\n</main></body></html>\n")


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def card(value: str, words: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(words)}</span></div>'


def cards(pairs: Sequence[tuple[str, str]]) -> str:
    return f'<div class="cards">{"".join(card(value, words) for value, words in pairs)}</div>'


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{escape(text)}</p>"


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], align: str, best: int | None = None, code: int = -1,
) -> str:
    """``align`` is l or r for each column; ``best`` is a row to stress, ``code`` a column in a typewriter's face."""
    def cell(tag: str, column: int, text: str) -> str:
        inner = f"<code>{escape(text)}</code>" if column == code and tag == "td" else escape(text)
        return f"<{tag}{_class('r' if align[column] == 'r' else '')}>{inner}</{tag}>"

    top = "".join(cell("th", column, text) for column, text in enumerate(head))
    body = "".join(
        f"<tr{_class('best' if index == best else '')}>" + "".join(cell("td", c, t) for c, t in enumerate(row)) + "</tr>"
        for index, row in enumerate(rows))
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
