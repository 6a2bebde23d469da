"""A hook of the documents' site: links to files outside docs/, which only a checkout has, become their names."""

import re
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, **unused: Any) -> str:
    """Called by mkdocs for every page."""
    return _LINK.sub(_name, markdown)


def _name(link: re.Match) -> str:
    text, target = link[1], link[2]
    return f"`{target}`" if text.strip("`") in target else f"{text} (`{target}`)"
