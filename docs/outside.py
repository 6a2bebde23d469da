"""Hooks of the documents' site, so that it needs nothing outside of it, and its tables can be read.

Links to files outside docs/, which only a checkout has, become their names. The theme's script for searching in pages
that are opened from a folder would come from the network: ours takes its place. Cells of tables are told apart by the
length of their text, which a style sheet cannot do: see site.css.
"""

import re
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)]+)\)")
_FETCHED = "https://unpkg.com/iframe-worker/shim"
_OURS = "search_in_a_folder.js"
_CELL = re.compile(r"<td(?P<attributes>[^>]*)>(?P<inside>.*?)</td>", re.DOTALL)
# Letters, of a cell that stays in one line.
_SHORT = 20


def on_page_markdown(markdown: str, **unused: Any) -> str:
    """Called by mkdocs for every page."""
    return _LINK.sub(_name, markdown)


def on_page_content(html: str, **unused: Any) -> str:
    """Called by mkdocs for the text of every page."""
    return _CELL.sub(_with_length, html)


def on_post_page(output: str, page: Any, **unused: Any) -> str:
    """Called by mkdocs for every page that is done."""
    return output.replace(_FETCHED, "../" * page.url.count("/") + _OURS)


def on_post_template(output_content: str, template_name: str, **unused: Any) -> str:
    """Called by mkdocs for pages without a text, such as that for wrong addresses."""
    return output_content.replace(_FETCHED, _OURS)


def _name(link: re.Match) -> str:
    text, target = link[1], link[2]
    return f"`{target}`" if text.strip("`") in target else f"{text} (`{target}`)"


def _with_length(cell: re.Match) -> str:
    text = re.sub(r"<[^>]+>", "", cell["inside"])
    length = "short" if len(text) <= _SHORT else "long"
    return f'<td class="{length}"{cell["attributes"]}>{cell["inside"]}</td>'
