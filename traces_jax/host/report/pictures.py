"""Pictures of groups, each as SVG and PNG. The only file that knows matplotlib, which is loaded when one is drawn."""

import collections
import contextlib
import dataclasses
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from traces_jax.host.report import credits, groups, read
from traces_jax.host.report.credits import Diagnosis
from traces_jax.host.report.groups import Group
from traces_jax.host.show import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A page replaces these two to suit its own colours, see `inline`.
INK, PAPER = "#1f2328", "#ffffff"
# In the middle between light and dark, so that they are seen on both.
COLORS = ("#2f81f7", "#e8710a", "#1f9d6b", "#a06cd5", "#e5484d", "#0f9fb5", "#d6409f", "#a3812a")
_LINES = ("-", "--", ":", "-.")
# Inches. Margins are given, not found: to try layouts would take longer than to draw.
_WIDTH, _HEIGHT = 4.8, 2.9
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.12, 0.3, 0.46
_LEGEND_LINE = 0.17
# About as many letters of small text as a picture is wide.
_LETTERS = 66
# Points of a curve: more cannot be told apart at this size.
_POINTS = 200
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
_TITLES = {
    "episode/return": "return",
    "episode/cost": "true cost",
    "episode/accepted": "share of acceptable episodes",
    "constraint/multiplier": "multiplier",
    "labels/trajectories": "labelled trajectories",
    "estimate/right": "share the estimator judges rightly",
    "estimate/jensen_gap": "Jensen gap: log E[p] - E[log p]",
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
    height: float = _HEIGHT
    legend: int = 0
    right: float = _RIGHT


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
    figure = Figure(figsize=(_WIDTH, height))
    edges = {
        "left": _LEFT / _WIDTH,
        "right": 1 - plan.right / _WIDTH,
        "bottom": (_BOTTOM + _LEGEND_LINE * plan.legend) / height,
        "top": 1 - _TOP / height,
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


def plan(own: Sequence[Group], stem: str) -> list[Plan]:
    """The pictures of one task. stem: how the names of their files begin."""
    plans = [plan for name in read.CURVES if (plan := _curve(own, name, stem))]
    plans += [plan for plan in (_uncertainty(own, stem), _stages(own, stem)) if plan]
    count: collections.Counter[str] = collections.Counter()
    for group in own:
        count[group.source] += 1
        diagnosis = group.diagnosis()
        if diagnosis:
            # Names of settings are too long for files.
            number = f"-{count[group.source]}" if count[group.source] > 1 else ""
            plans += _credit_plans(group, diagnosis, f"{stem}-{slug(group.source)}{number}")
    return plans


def thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of neighbours, so that about `_POINTS` are left; NaN counts nowhere. steps: [I], values: [..., I]."""
    size = max(1, len(steps) // _POINTS)
    starts = np.arange(0, len(steps), size)
    counts = np.add.reduceat(np.isfinite(values), starts, axis=-1, dtype=float)
    sums = np.add.reduceat(np.nan_to_num(values), starts, axis=-1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return np.add.reduceat(steps, starts) / np.diff([*starts, len(steps)]), means


def _curve(own: Sequence[Group], name: str, stem: str) -> Plan | None:
    """A row of the metrics over training."""
    shown = [(place, group) for place, group in enumerate(own) if np.isfinite(group.curve(name)[1]).any()]
    if not shown:
        return None

    def draw(figure: "Figure", rows: "list[Axes]") -> None:
        axes = rows[0]
        for place, group in shown:
            _band(axes, group, name, group.name, place)
        if name == "episode/cost":
            for limit in {group.limit for _, group in shown}:
                axes.axhline(limit, color=INK, linestyle="--", linewidth=1)
        _training_axes(figure, axes, f"{groups.short(own[0].task)}: {_TITLES[name]}")

    caption = "Dashed: the hidden threshold." if name == "episode/cost" else ""
    return Plan(f"{stem}-{slug(name)}", _TITLES[name], caption, draw, legend=len(shown))


def _band(axes: "Axes", group: Group, name: str, label: str, place: int) -> None:
    steps, values = group.curve(name)
    steps, values = thin(steps, values)
    mean, deviation = curves.mean_and_deviation(values)
    known = np.isfinite(mean)
    color, line = COLORS[place % len(COLORS)], _LINES[place // len(COLORS) % len(_LINES)]
    axes.plot(steps[known], mean[known], line, color=color, label=label)
    axes.fill_between(
        steps[known], (mean - deviation)[known], (mean + deviation)[known], color=color, alpha=0.2, linewidth=0
    )


def _training_axes(figure: "Figure", axes: "Axes", title: str) -> None:
    from matplotlib import ticker

    axes.set_title(title)
    axes.set_xlabel("environment steps of a seed")
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    # A power of ten above the axis would push the title out of the picture.
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="lower left")


def _uncertainty(own: Sequence[Group], stem: str) -> Plan | None:
    """Coefficients of variation of the trajectories that were picked and of all among which they were."""
    lines = [
        (group, name, what)
        for group in own
        for name, what in read.UNCERTAINTY.items()
        if np.isfinite(group.curve(name)[1]).any()
    ]
    if not lines:
        return None

    def draw(figure: "Figure", rows: "list[Axes]") -> None:
        axes = rows[0]
        for place, (group, name, what) in enumerate(lines):
            _band(axes, group, name, f"{group.name}: {what}", place)
        _training_axes(figure, axes, f"{groups.short(own[0].task)}: coefficient of variation")

    caption = "How uncertain summed credits are for their size: all new trajectories, and those picked for a label."
    return Plan(f"{stem}-uncertainty", "coefficient of variation", caption, draw, legend=len(lines))


def _stages(own: Sequence[Group], stem: str) -> Plan | None:
    """Where the time of an iteration goes."""
    names = sorted({name for group in own for lane in group.lanes for name in lane.rows if name.startswith(read.STAGE)})
    seconds = {
        (group.name, name): curves.mean_and_deviation(group.curve(name)[1].reshape(-1, 1))[0]
        for group in own
        for name in names
    }
    shown = [group.name for group in own if any(np.isfinite(seconds[group.name, name]).any() for name in names)]
    if not shown:
        return None

    def draw(figure: "Figure", rows: "list[Axes]") -> None:
        axes = rows[0]
        heights = np.arange(len(shown))
        left = np.zeros(len(shown))
        for place, name in enumerate(names):
            widths = np.nan_to_num([float(seconds[group, name][0]) for group in shown])
            label = name.removeprefix(read.STAGE)
            axes.barh(heights, widths, 0.4, left=left, color=COLORS[place % len(COLORS)], label=label)
            left += widths
        for height, group in zip(heights, shown, strict=True):
            axes.text(0, height - 0.28, f" {_cut(group)}", size=8)
        axes.set(title=f"{groups.short(own[0].task)}: time of an iteration", xlabel="seconds", yticks=[])
        axes.set_ylim(len(shown) - 0.5, -0.7)
        figure.legend(loc="lower left", ncols=3)

    caption = "Mean seconds of each stage of an iteration."
    return Plan(
        f"{stem}-stages",
        "time of an iteration",
        caption,
        draw,
        height=_TOP + _BOTTOM + 0.5 * len(shown),
        legend=math.ceil(len(names) / 3),
    )


def _credit_plans(group: Group, diagnosis: Diagnosis, stem: str) -> list[Plan]:
    title = f"{groups.short(group.task)}, {group.name}"
    plans = [
        Plan(
            f"{stem}-probability",
            f"{group.name}: estimated probability against true cost",
            "Boxes: quartiles of the estimated probability of being acceptable; diamonds: means. It should fall at the "
            "dashed line, the hidden threshold.",
            lambda figure, rows: _draw_boxes(rows[0], diagnosis, title),
        ),
        Plan(
            f"{stem}-reliability",
            f"{group.name}: reliability",
            "Share of episodes that the labeler accepts among those to which the estimator gives about the same "
            "probability; on the diagonal it is right. Larger points stand for more episodes.",
            lambda figure, rows: _draw_reliability(rows[0], diagnosis, title),
        ),
        Plan(
            f"{stem}-examples",
            f"{group.name}: credit of single episodes",
            "Credit of each step, and the true cost so far. The dotted line is where it crosses the hidden threshold: "
            "credit should be near it.",
            lambda figure, rows: _draw_examples(figure, rows, diagnosis, title),
            axes=len(diagnosis.examples),
            height=_TOP + _BOTTOM + 1.2 * len(diagnosis.examples),
            legend=1,
            right=0.55,
        ),
    ]
    if np.isfinite(diagnosis.where_none).any():
        plans.append(
            Plan(
                f"{stem}-where-none",
                f"{group.name}: credit where there is no cost",
                "Of each episode, mean credit of steps without true cost over mean credit of all. Below 1, credit goes "
                "to steps that cost.",
                lambda figure, rows: _draw_where_none(rows[0], diagnosis, title),
            )
        )
    if np.isfinite(diagnosis.windows).any():
        plans.append(
            Plan(
                f"{stem}-crossing",
                f"{group.name}: credit around the crossing",
                f"Mean credit in windows of {credits.WINDOW} steps around the step at which the hidden threshold is "
                "crossed, over the episode's mean; mean and standard deviation over episodes. Above 1 around 0, credit "
                "gathers at the violation.",
                lambda figure, rows: _draw_windows(rows[0], diagnosis, title),
            )
        )
    return plans


def _draw_boxes(axes: "Axes", diagnosis: Diagnosis, title: str) -> None:
    edges = credits.cost_bins(diagnosis.total, diagnosis.limit)
    place = np.searchsorted(edges, diagnosis.total) - 1
    filled = np.unique(place)
    middles = (edges[:-1] + edges[1:])[filled] / 2
    line = {"color": INK, "linewidth": 0.8}
    axes.boxplot(
        [diagnosis.probability[place == one] for one in filled],
        positions=middles,
        widths=0.7 * (edges[1] - edges[0]),
        manage_ticks=False,
        patch_artist=True,
        showmeans=True,
        boxprops={"facecolor": COLORS[0] + "66", "edgecolor": COLORS[0]},
        medianprops={"color": COLORS[0], "linewidth": 1.6},
        meanprops={"marker": "D", "markersize": 3, "markerfacecolor": COLORS[1], "markeredgecolor": COLORS[1]},
        flierprops={"marker": ".", "markersize": 3, "markerfacecolor": INK, "markeredgecolor": "none", "alpha": 0.5},
        whiskerprops=line,
        capprops=line,
    )
    axes.axvline(diagnosis.limit, color=INK, linestyle="--", linewidth=1)
    axes.set_ylim(-0.04, 1.04)
    axes.set(title=title, xlabel="true cost of an episode", ylabel="estimated probability")


def _draw_reliability(axes: "Axes", diagnosis: Diagnosis, title: str) -> None:
    found = credits.reliability(diagnosis.probability, diagnosis.accepted)
    axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1)
    axes.plot(found.predicted, found.accepted, color=COLORS[0], alpha=0.6)
    sizes = 15 + 150 * found.count / found.count.sum()
    axes.scatter(found.predicted, found.accepted, sizes, color=COLORS[0], zorder=3, clip_on=False)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="estimated probability", ylabel="share accepted")
    axes.set_title(f"{title} (calibration error {found.error:.2f})")


def _draw_examples(figure: "Figure", rows: "list[Axes]", diagnosis: Diagnosis, title: str) -> None:
    longest = max(len(example.cost) for example in diagnosis.examples)
    for axes, example in zip(rows, diagnosis.examples, strict=True):
        steps = np.arange(1, len(example.cost) + 1)
        axes.plot(steps, example.cost, color=COLORS[0], label="true cost so far")
        axes.axhline(diagnosis.limit, color=INK, linestyle="--", linewidth=1)
        axes.tick_params(axis="y", colors=COLORS[0])
        axes.tick_params(axis="x", labelbottom=axes is rows[-1])
        axes.set(xlim=(0, longest), ylim=(0, 1.15 * max(example.cost[-1], diagnosis.limit, 1.0)))
        right = axes.twinx()
        right.grid(visible=False)
        right.plot(steps, example.credit, color=COLORS[2], linewidth=0.9, label="credit of the step")
        right.tick_params(axis="y", colors=COLORS[2])
        right.set_ylim(bottom=0)
        if example.crossing is not None:
            axes.axvline(steps[example.crossing], color=INK, linestyle=":", linewidth=1.2)
    rows[0].set_title(title)
    rows[-1].set_xlabel("step")
    figure.legend(handles=[*axes.lines[:1], *right.lines[:1]], loc="lower left", ncols=2)


def _draw_where_none(axes: "Axes", diagnosis: Diagnosis, title: str) -> None:
    known = diagnosis.where_none[np.isfinite(diagnosis.where_none)]
    axes.hist(known, bins=30, range=(0, max(1.2, float(known.max()))), color=COLORS[0], alpha=0.8)
    axes.axvline(1.0, color=INK, linestyle="--", linewidth=1)
    axes.axvline(float(known.mean()), color=COLORS[1], label=f"mean {known.mean():.2f}")
    axes.set(title=title, xlabel="mean credit without cost / mean credit", ylabel="episodes")
    axes.legend()


def _draw_windows(axes: "Axes", diagnosis: Diagnosis, title: str) -> None:
    mean, deviation = curves.mean_and_deviation(diagnosis.windows)
    axes.plot(credits.OFFSETS, mean, color=COLORS[2])
    axes.fill_between(credits.OFFSETS, mean - deviation, mean + deviation, color=COLORS[2], alpha=0.2, linewidth=0)
    axes.axhline(1.0, color=INK, linestyle="--", linewidth=1)
    axes.axvline(0.0, color=INK, linestyle=":", linewidth=1.2)
    axes.set(title=title, xlabel="steps from the crossing", ylabel="credit / mean credit")
    axes.set_ylim(bottom=0)


def _cut(text: str) -> str:
    """Text that is not wider than a picture."""
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def slug(text: str) -> str:
    """Text that can be part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
