"""Plots of training: all groups of a task together."""

import collections
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from traces_jax.host.report import credit_pictures, groups, read
from traces_jax.host.report.canvas import BOTTOM, COLORS, INK, LINES, TOP, Plan, cut, slug
from traces_jax.host.report.groups import Group
from traces_jax.host.show import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Points of a curve; more are not distinguishable at this size.
_POINTS = 200
_TITLES = {
    "episode/return": "return",
    "episode/cost": "true cost",
    "episode/accepted": "share of acceptable episodes",
    "constraint/multiplier": "multiplier",
    "labels/trajectories": "labelled trajectories",
    "estimate/right": "accuracy of the estimator",
    "estimate/jensen_gap": "Jensen gap: log E[p] - E[log p]",
}


def plan(own: Sequence[Group], stem: str) -> list[Plan]:
    """The plots of one task. stem: prefix of their file names."""
    plans = [plan for name in read.CURVES if (plan := _curve(own, name, stem))]
    plans += [plan for plan in (_uncertainty(own, stem), _stages(own, stem)) if plan]
    count: collections.Counter[str] = collections.Counter()
    for group in own:
        count[group.source] += 1
        diagnosis = group.diagnosis()
        if diagnosis:
            # Names of settings are too long for file names.
            number = f"-{count[group.source]}" if count[group.source] > 1 else ""
            plans += credit_pictures.plan(group, diagnosis, f"{stem}-{slug(group.source)}{number}")
    return plans


def thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Averages neighbours to about `_POINTS` points, ignoring NaN. steps: [I], values: [..., I]."""
    size = max(1, len(steps) // _POINTS)
    starts = np.arange(0, len(steps), size)
    counts = np.add.reduceat(np.isfinite(values), starts, axis=-1, dtype=float)
    sums = np.add.reduceat(np.nan_to_num(values), starts, axis=-1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return np.add.reduceat(steps, starts) / np.diff([*starts, len(steps)]), means


def _curve(own: Sequence[Group], name: str, stem: str) -> Plan | None:
    """A metric over training."""
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
    color, line = COLORS[place % len(COLORS)], LINES[place // len(COLORS) % len(LINES)]
    axes.plot(steps[known], mean[known], line, color=color, label=label)
    axes.fill_between(
        steps[known], (mean - deviation)[known], (mean + deviation)[known], color=color, alpha=0.2, linewidth=0
    )


def _training_axes(figure: "Figure", axes: "Axes", title: str) -> None:
    from matplotlib import ticker

    axes.set_title(title)
    axes.set_xlabel("environment steps of a seed")
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    # A power of ten above the axis would push the title out of the plot.
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="lower left")


def _uncertainty(own: Sequence[Group], stem: str) -> Plan | None:
    """Coefficients of variation of the selected trajectories and of all candidates."""
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

    caption = "Coefficient of variation of summed credits: of all new trajectories, and of those selected for labels."
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
            axes.text(0, height - 0.28, f" {cut(group)}", size=8)
        axes.set(title=f"{groups.short(own[0].task)}: time of an iteration", xlabel="seconds", yticks=[])
        axes.set_ylim(len(shown) - 0.5, -0.7)
        figure.legend(loc="lower left", ncols=3)

    caption = "Mean seconds of each stage of an iteration."
    return Plan(
        f"{stem}-stages",
        "time of an iteration",
        caption,
        draw,
        height=TOP + BOTTOM + 0.5 * len(shown),
        legend=math.ceil(len(names) / 3),
    )
