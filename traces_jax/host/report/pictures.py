"""Plots of training: all groups of a task together."""

import collections
import dataclasses
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
    from matplotlib.typing import LineStyleType

# Points of a curve; more are not distinguishable at this size.
_POINTS = 200
# Share of a run over which shares of episodes are averaged: those of a single iteration are of a handful.
_SMOOTHING = 0.05
_STAGES = {
    "collect": "rollouts",
    "judge": "labels, refit, credits",
    "update": "policy update",
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a metric is shown.

    Attributes:
      title, label: what it is; what its axis says.
      caption: an explanation, if needed.
      share: whether it lies between 0 and 1.
    """

    title: str
    label: str
    caption: str = ""
    share: bool = False


_KINDS = {
    "episode/return": Kind("return", "sum of rewards of an episode", "Of the policy with its noise, while it learns."),
    "episode/cost": Kind(
        "true cost", "sum of costs of an episode", "Dashed: the limit, which the learner does not know."
    ),
    "episode/accepted": Kind("acceptable episodes", "share of episodes", "A moving average over 5 % of the run.", True),
    "constraint/multiplier": Kind("multiplier", "weight of the cost", "The weight of the cost in the policy update."),
    "labels/trajectories": Kind("labels used", "labelled trajectories", "Since the start of the run."),
    "estimate/right": Kind(
        "accuracy of the estimator",
        "share of new trajectories",
        "New trajectories whose label the estimator predicts before it learns from it. A moving average over 5 % of "
        "the run.",
        True,
    ),
    "estimate/jensen_gap": Kind(
        "Jensen gap",
        "log E[p^] - E[log p^]",
        "How much stricter it would be to bound the mean summed credit than the mean of p^.",
    ),
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


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over up to `window` points, fewer at the ends, ignoring NaN. values: [..., I]."""
    half = window // 2
    known = np.isfinite(values)
    sums, counts = (
        np.cumsum(np.pad(part, [(0, 0)] * (values.ndim - 1) + [(half + 1, half)]), axis=-1)
        for part in (np.where(known, values, 0.0), known.astype(float))
    )
    width = 2 * half + 1
    sums, counts = sums[..., width:] - sums[..., :-width], counts[..., width:] - counts[..., :-width]
    return np.divide(sums, counts, out=np.full(values.shape, np.nan), where=known & (counts > 0))


def look(place: int) -> "tuple[str, LineStyleType]":
    """Colour and line of a group."""
    return COLORS[place % len(COLORS)], LINES[place // len(COLORS) % len(LINES)]


def _curve(own: Sequence[Group], name: str, stem: str) -> Plan | None:
    """A metric over training."""
    shown = [(place, group) for place, group in enumerate(own) if np.isfinite(group.curve(name)[1]).any()]
    if not shown:
        return None
    kind = _KINDS[name]

    def draw(figure: "Figure", rows: "list[Axes]") -> None:
        axes = rows[0]
        for place, group in shown:
            color, line = look(place)
            _band(axes, group, name, color, line, group.name, share=kind.share)
        if name == "episode/cost":
            for limit in {group.limit for _, group in shown}:
                axes.axhline(limit, color=INK, linestyle="--", linewidth=1)
        if kind.share:
            axes.set_ylim(-0.03, 1.03)
        _training_axes(figure, axes, kind.label, legend=len(own) > 1)

    title = f"{groups.short(own[0].task)}: {kind.title}"
    legend = len(shown) if len(own) > 1 else 0
    return Plan(f"{stem}-{slug(name)}", title, kind.caption, draw, legend=legend, shared=True)


def _band(
    axes: "Axes", group: Group, name: str, color: str, line: "LineStyleType", label: str, *, share: bool = False
) -> None:
    """The mean over seeds, and a band of one standard deviation that does not leave what was measured."""
    steps, values = group.curve(name)
    steps, values = thin(steps, values)
    if share:
        values = smooth(values, round(_SMOOTHING * values.shape[1]))
    mean, low, high = curves.band(values)
    known = np.isfinite(mean)
    axes.plot(steps[known], mean[known], linestyle=line, color=color, label=label)
    axes.fill_between(steps[known], low[known], high[known], color=color, alpha=0.18, linewidth=0)


def _training_axes(figure: "Figure", axes: "Axes", label: str, *, legend: bool) -> None:
    from matplotlib import ticker

    axes.set(xlabel="environment steps of a seed", ylabel=label)
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    # A power of ten above the axis would push the title out of the plot.
    axes.yaxis.set_major_formatter("{x:g}")
    if legend:
        figure.legend(loc="lower left")


def _uncertainty(own: Sequence[Group], stem: str) -> Plan | None:
    """Coefficients of variation of the selected trajectories and of all candidates."""
    lines = [
        (place, group, name)
        for place, group in enumerate(own)
        for name in read.UNCERTAINTY
        if np.isfinite(group.curve(name)[1]).any()
    ]
    if not lines:
        return None

    def draw(figure: "Figure", rows: "list[Axes]") -> None:
        for place, group, name in lines:
            picked = name == read.PICKED
            color = look(place)[0]
            _band(rows[0], group, name, color, "solid" if picked else (0, (1, 1.5)), group.name if picked else "_")
        _training_axes(figure, rows[0], "coefficient of variation", legend=len(own) > 1)

    title = f"{groups.short(own[0].task)}: uncertainty of the estimator"
    caption = (
        "Coefficient of variation of a trajectory's summed credit. Solid: of the trajectories that were selected for "
        "labels; dotted: of all new ones."
    )
    legend = sum(name == read.PICKED for _, _, name in lines) if len(own) > 1 else 0
    return Plan(f"{stem}-uncertainty", title, caption, draw, legend=legend, shared=True)


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
            label = _STAGES.get(label, label)
            axes.barh(heights, widths, 0.4, left=left, color=COLORS[place % len(COLORS)], label=label)
            left += widths
        if len(own) > 1:
            for height, group in zip(heights, shown, strict=True):
                axes.text(0, height - 0.28, f" {cut(group)}", size=8)
        axes.set(xlabel="seconds", yticks=[])
        axes.set_ylim(len(shown) - 0.5, -0.7)
        figure.legend(loc="lower left", ncols=3)

    return Plan(
        f"{stem}-stages",
        f"{groups.short(own[0].task)}: time of an iteration",
        "Mean seconds of each stage.",
        draw,
        height=TOP + BOTTOM + 0.5 * len(shown),
        legend=math.ceil(len(names) / 3),
    )
