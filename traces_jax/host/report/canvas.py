"""Style and drawing of plots, as SVG and PNG. Matplotlib is imported only when a plot is drawn."""

import contextlib
import dataclasses
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from traces_jax.host.show import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

# Replaced where a picture is shown, see `inline` and `adaptive`.
INK, PAPER = palette.LIGHT_INK, palette.LIGHT_PAPER
COLORS = palette.SERIES
# Dots and dashes in points, for matplotlib and for a page.
LINES: tuple["LineStyleType", ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
# Inches. Margins are fixed: computing the layout would take longer than drawing.
WIDTH, HEIGHT = 4.8, 2.9
LEFT, RIGHT, TOP, BOTTOM = 0.72, 0.14, 0.32, 0.48
_TITLE_LINE, _LEGEND_LINE = 0.17, 0.17
# Approximate width of a plot in letters of its title, and of small text.
_TITLE_LETTERS, _LETTERS = 58, 66
_POINTS_PER_INCH = 72
_COLOURS = (
    f"<style>:root {{ --ink: {palette.LIGHT_INK}; --paper: {palette.LIGHT_PAPER} }} "
    f"@media (prefers-color-scheme: dark) {{ :root {{ --ink: {palette.DARK_INK}; --paper: {palette.DARK_PAPER} }} }}"
    "</style>\n <defs>"
)
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    # Text stays text: smaller files, and it can be searched.
    "svg.fonttype": "none",
    # A folder's name may contain a dollar sign.
    "text.parse_math": False,
}


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawn plot.

    Attributes:
      name: of its files, without suffix.
      title, caption: what it shows; an explanation, if needed.
      svg, png: the files.
      legend: points at the lower end that a page with one legend for all of its plots leaves out.
    """

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    legend: float = 0.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plot to be drawn. Plans are cheap, so that the total is known for the progress bar.

    Attributes:
      title: what it shows; above the plot, in several lines if it is long.
      draw: function that draws it, given the figure and its axes, one below the other.
      axes: number of axes.
      height: inches of all axes.
      legend: lines of text below the axes.
      shared: whether the legend is that of all curves of a page.
      right: inches to the right of the axes.
    """

    name: str
    title: str
    caption: str
    draw: "Callable[[Figure, list[Axes]], None]"
    axes: int = 1
    height: float = HEIGHT
    legend: int = 0
    shared: bool = False
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

    title = textwrap.wrap(plan.title, _TITLE_LETTERS)
    top = TOP + _TITLE_LINE * (len(title) - 1)
    legend = _LEGEND_LINE * plan.legend
    height = plan.height + top - TOP + legend
    figure = Figure(figsize=(WIDTH, height))
    edges = {
        "left": LEFT / WIDTH,
        "right": 1 - plan.right / WIDTH,
        "bottom": (BOTTOM + legend) / height,
        "top": 1 - top / height,
    }
    rows = list(figure.subplots(plan.axes, squeeze=False, gridspec_kw=edges)[:, 0])
    # From the left edge of the picture, where there is room for more letters than over the axes.
    rows[0].set_title("\n".join(title), x=-LEFT / (WIDTH - LEFT - plan.right) + 0.01)
    plan.draw(figure, rows)
    svg, png = io.StringIO(), io.BytesIO()
    # A fixed salt for ids makes the files reproducible, and ids of different plots distinct.
    with matplotlib.rc_context({"svg.hashsalt": plan.name}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    hidden = _POINTS_PER_INCH * legend if plan.shared else 0.0
    return Picture(plan.name, plan.title, plan.caption, svg.getvalue(), png.getvalue(), hidden)


def adaptive(picture: Picture) -> str:
    """The SVG as a file of its own: dark where its reader prefers dark."""
    return (
        picture.svg.replace(PAPER, f"var(--paper, {PAPER})")
        .replace(INK, f"var(--ink, {INK})")
        .replace("<defs>", _COLOURS, 1)
    )


def inline(picture: Picture) -> str:
    """The SVG for embedding in a page, in the page's colors."""
    text = picture.svg[picture.svg.index("<svg") :]
    text = text.replace(PAPER, "none").replace(INK, "currentColor")
    if picture.legend:
        # It is below the axes: a lower picture ends above it.
        text = re.sub(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', lambda box: _lower(box, picture.legend), text, count=1)
        text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    # Ids of groups repeat between plots, and nothing refers to them.
    return re.sub(r'<g id="[^"]*"', "<g", text)


def _lower(box: re.Match, by: float) -> str:
    return f'viewBox="0 0 {box[1]} {float(box[2]) - by:g}"'


def cut(text: str) -> str:
    """Text cut to the width of a plot."""
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def slug(text: str) -> str:
    """Text that can be part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
