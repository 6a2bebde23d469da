"""The report as one self-contained HTML page: no scripts, no external resources, light or dark by browser setting."""

import dataclasses
import html
from collections.abc import Sequence

from traces_jax.host.report import canvas, pictures, tables
from traces_jax.host.report.canvas import Picture
from traces_jax.host.report.tables import Table

_STYLE = """
:root { color-scheme: light dark;
  --ink: #1f2328; --faint: #656d76; --paper: #ffffff; --line: #d0d7de; --best: #0a58ca; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --faint: #9aa4af; --paper: #0d1117; --line: #3d444d; --best: #79b8ff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 0.5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 0.5rem; }
p { max-width: 48rem; margin: 0.5rem 0; }
a { color: var(--best); }
nav { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; }
.scroll { overflow-x: auto; margin: 0.75rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.15rem 0.8rem 0.15rem 0; text-align: left; white-space: nowrap; vertical-align: bottom; }
th { font-weight: 600; }
thead th { max-width: 12rem; white-space: normal; overflow-wrap: break-word; font-size: 0.85rem; color: var(--faint); }
tbody th { padding-top: 0.5rem; border-top: 1px solid var(--line); }
td:first-child, thead th:first-child { position: sticky; left: 0; z-index: 1; background: var(--paper); }
tbody th span { position: sticky; left: 0; }
td.long { min-width: 24rem; white-space: normal; overflow-wrap: anywhere; font: 0.8rem/1.4 ui-monospace, monospace; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.5rem; margin: 0.75rem 0; padding: 0; list-style: none;
  position: sticky; top: 0; background: var(--paper); z-index: 2; }
.legend svg { width: 1.75rem; height: 0.5rem; margin-right: 0.5rem; fill: none; stroke-width: 2.5; }
figure svg text { font-family: system-ui, sans-serif !important; }
td.faint, figcaption, .faint { color: var(--faint); }
td.best { color: var(--best); }
summary { cursor: pointer; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)); gap: 1rem 1.5rem; }
figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font-size: 0.85rem; line-height: 1.4; }
li { overflow-wrap: anywhere; }
"""
_RESULTS = (
    "Mean (standard deviation) over seeds, of evaluation episodes. Bold: the mean cost is within the limit. "
    f"{tables.BEST}: our highest return within it. The paper's numbers are next to ours of the same method. "
    "In training plots, curves are means over seeds and bands are one standard deviation; where some seeds have "
    "stopped, over the remaining ones."
)
_NO_RESULTS = "No run has been evaluated yet."
# Content security policy: external resources are never loaded.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HEAD = (
    "<!DOCTYPE html>",
    '<html lang="en">',
    "<head>",
    '<meta charset="utf-8">',
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<link rel="icon" href="data:,">',
    "<title>Runs of traces_jax</title>",
    f"<style>{_STYLE}</style>",
    "</head>",
    "<body>",
)


@dataclasses.dataclass(frozen=True)
class Section:
    """The plots of one task. groups: what its curves are of, in the order of their colours."""

    title: str
    pictures: list[Picture]
    groups: list[str]


def render(
    *,
    summary: str,
    results: Sequence[Table],
    more: Sequence[tuple[Table, str]],
    sections: Sequence[Section],
    notes: Sequence[str],
) -> str:
    """summary: a sentence on what was read. more: collapsed tables, with a sentence each."""
    links = [("results", "Results"), *((_anchor(place), section.title) for place, section in enumerate(sections))]
    if notes:
        links.append(("notes", f"Notes ({len(notes)})"))
    body = [
        "<h1>Runs of traces_jax</h1>",
        f"<p>{html.escape(summary)}</p>",
        "<nav>" + "".join(f'<a href="#{name}">{html.escape(text)}</a>' for name, text in links) + "</nav>",
        '<h2 id="results">Results</h2>',
        f"<p>{_RESULTS if results else _NO_RESULTS}</p>",
        *(f"<h3>{html.escape(table.title)}</h3>\n{_scroll(table)}" for table in results),
        *(_details(table, sentence) for table, sentence in more if table.rows),
        *(_section(section, _anchor(place)) for place, section in enumerate(sections)),
    ]
    if notes:
        body += ['<h2 id="notes">Notes</h2>', "<ul>", *(f"<li>{html.escape(note)}</li>" for note in notes), "</ul>"]
    return "\n".join([*_HEAD, *body, "</body>", "</html>", ""])


def _anchor(place: int) -> str:
    return f"task-{place + 1}"


def _details(table: Table, sentence: str) -> str:
    opening = f"<details><summary>{html.escape(table.title)}</summary>"
    return f"{opening}\n<p>{html.escape(sentence)}</p>\n{_scroll(table)}\n</details>"


def _section(section: Section, anchor: str) -> str:
    drawn = "\n".join(_figure(picture) for picture in section.pictures)
    heading = f'<h2 id="{anchor}">{html.escape(section.title)}</h2>'
    return f'{heading}\n{_legend(section.groups)}<div class="pictures">\n{drawn}\n</div>'


def _legend(names: Sequence[str]) -> str:
    """One for all curves of a section; none for a single group."""
    if len(names) < 2:
        return ""
    items = []
    for place, name in enumerate(names):
        color, line = pictures.look(place)
        dashes = "" if isinstance(line, str) else " ".join(f"{2 * length:g}" for length in line[1])
        drawn = f'<svg viewBox="0 0 28 8"><path d="M1 4h26" stroke="{color}" stroke-dasharray="{dashes}"/></svg>'
        items.append(f"<li>{drawn}{html.escape(name)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>\n'


def _scroll(table: Table) -> str:
    # Wide tables scroll by themselves; the page does not.
    return f'<div class="scroll" tabindex="0">\n{tables.page(table)}</div>'


def _figure(picture: Picture) -> str:
    label = html.escape(picture.title, quote=True)
    svg = canvas.inline(picture).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    caption = f"<figcaption>{html.escape(picture.caption)}</figcaption>\n" if picture.caption else ""
    return f"<figure>\n{svg}\n{caption}</figure>"
