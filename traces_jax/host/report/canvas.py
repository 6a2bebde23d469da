"""How pictures look and how one is drawn, as SVG and PNG. Matplotlib is loaded when one is drawn."""

import contextlib
import dataclasses
import io
import re
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A page replaces these two to suit its own colours, see `inline`.
INK, PAPER = "#1f2328", "#ffffff"
# In the middle between light and dark, so that they are seen on both.
COLORS = ("#2f81f7", "#e8710a", "#1f9d6b", "#a06cd5", "#e5484d", "#0f9fb5", "#d6409f", "#a3812a")
LINES = ("-", "--", ":", "-.")
# Inches. Margins are given, not found: to try layouts would take longer than to draw.
WIDTH, HEIGHT = 4.8, 2.9
LEFT, RIGHT, TOP, BOTTOM = 0.62, 0.12, 0.3, 0.46
_LEGEND_LINE = 0.17
# About as many letters of small text as a picture is wide.
_LETTERS = 66
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.4,
    # Letters stay letters: smaller files, and a reader can search them.
    "svg.fonttype": "none",
    # A folder's name may hold a dollar sign.
    "text.parse_math": False,
}


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawn picture. name: of its files, without ending. caption: what to see, if it needs to be said."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


@dataclasses.dataclass(frozen=True)
class Plan:
    """A picture to be drawn; making one costs nothing, so that progress can be shown.

    Attributes:
      draw: what draws it, given the figure and so many axes under one another.
      axes: how many.
      height: inches of them all.
      legend: lines of text below them.
      right: inches to the right of them.
    """

    name: str
    title: str
    caption: str
    draw: "Callable[[Figure, list[Axes]], None]"
    axes: int = 1
    height: float = HEIGHT
    legend: int = 0
    right: float = RIGHT


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Our settings of matplotlib, whatever the user's are, and the user's again afterwards."""
    import matplotlib

    ours: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_STYLE}
    # Whoever has chosen a canvas keeps it.
    ours = {name: value for name, value in ours.items() if not name.startswith("backend")}
    with matplotlib.rc_context(ours), warnings.catch_warnings():
        # Of letters that matplotlib's own font has not; they are right in the SVG.
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def draw(plan: Plan) -> Picture:
    """Draws within `style`."""
    import matplotlib
    from matplotlib.figure import Figure

    height = plan.height + _LEGEND_LINE * plan.legend
    figure = Figure(figsize=(WIDTH, height))
    edges = {
        "left": LEFT / WIDTH,
        "right": 1 - plan.right / WIDTH,
        "bottom": (BOTTOM + _LEGEND_LINE * plan.legend) / height,
        "top": 1 - TOP / height,
    }
    plan.draw(figure, list(figure.subplots(plan.axes, squeeze=False, gridspec_kw=edges)[:, 0]))
    svg, png = io.StringIO(), io.BytesIO()
    # Names inside the file begin with the salt: the same file for the same runs, and no two pictures share names.
    with matplotlib.rc_context({"svg.hashsalt": plan.name}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Picture(plan.name, plan.title, plan.caption, svg.getvalue(), png.getvalue())


def inline(picture: Picture) -> str:
    """The SVG as a part of a page, in the page's colours."""
    text = picture.svg[picture.svg.index("<svg") :]
    text = text.replace(PAPER, "none").replace(INK, "currentColor")
    # Names of groups repeat from picture to picture, and nothing refers to them.
    return re.sub(r'<g id="[^"]*"', "<g", text)


def cut(text: str) -> str:
    """Text that is not wider than a picture."""
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def slug(text: str) -> str:
    """Text that can be part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
