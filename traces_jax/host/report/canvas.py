"""Style and drawing of plots, as SVG and PNG. Matplotlib is imported only when a plot is drawn."""

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

# An HTML page replaces these two with its own colors, see `inline`.
INK, PAPER = "#1f2328", "#ffffff"
# Medium brightness, so that they are visible on light and dark.
COLORS = ("#2f81f7", "#e8710a", "#1f9d6b", "#a06cd5", "#e5484d", "#0f9fb5", "#d6409f", "#a3812a")
LINES = ("-", "--", ":", "-.")
# Inches. Margins are fixed: computing the layout would take longer than drawing.
WIDTH, HEIGHT = 4.8, 2.9
LEFT, RIGHT, TOP, BOTTOM = 0.62, 0.12, 0.3, 0.46
_LEGEND_LINE = 0.17
# Approximate width of a plot in letters of small text.
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
    # Text stays text: smaller files, and it can be searched.
    "svg.fonttype": "none",
    # A folder's name may contain a dollar sign.
    "text.parse_math": False,
}


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawn plot. name: of its files, without suffix. caption: explanation, if needed."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plot to be drawn. Plans are cheap, so that the total is known for the progress bar.

    Attributes:
      draw: function that draws it, given the figure and its axes, one below the other.
      axes: number of axes.
      height: inches of all axes.
      legend: lines of text below the axes.
      right: inches to the right of the axes.
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
    """Applies our matplotlib settings, and restores the user's afterwards."""
    import matplotlib

    ours: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_STYLE}
    # Keep the backend if the user has chosen one.
    ours = {name: value for name, value in ours.items() if not name.startswith("backend")}
    with matplotlib.rc_context(ours), warnings.catch_warnings():
        # About letters missing in matplotlib's font; they are correct in the SVG.
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
    # A fixed salt for ids makes the files reproducible, and ids of different plots distinct.
    with matplotlib.rc_context({"svg.hashsalt": plan.name}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Picture(plan.name, plan.title, plan.caption, svg.getvalue(), png.getvalue())


def inline(picture: Picture) -> str:
    """The SVG for embedding in a page, in the page's colors."""
    text = picture.svg[picture.svg.index("<svg") :]
    text = text.replace(PAPER, "none").replace(INK, "currentColor")
    # Ids of groups repeat between plots, and nothing refers to them.
    return re.sub(r'<g id="[^"]*"', "<g", text)


def cut(text: str) -> str:
    """Text cut to the width of a plot."""
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def slug(text: str) -> str:
    """Text that can be part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
