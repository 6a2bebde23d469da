"""Plots of an estimator on evaluated episodes: calibration, and where credit goes."""

from typing import TYPE_CHECKING

import numpy as np

from traces_jax.host.report import credits, groups
from traces_jax.host.report.canvas import BOTTOM, INK, TOP, Plan
from traces_jax.host.report.credits import Diagnosis
from traces_jax.host.report.groups import Group
from traces_jax.host.show import curves
from traces_jax.host.show.palette import COST, CREDIT, PROBABILITY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plan(group: Group, diagnosis: Diagnosis, stem: str) -> list[Plan]:
    """The plots of one group. stem: prefix of their file names."""
    name = f"{groups.short(group.task)}, {group.name}"
    error = credits.reliability(diagnosis.probability, diagnosis.accepted).error
    plans = [
        Plan(
            f"{stem}-probability",
            f"{name}: estimated probability by true cost",
            "Each box: episodes of about the same true cost. The box holds half of their estimated probabilities p^ of "
            "being acceptable, the line in it is the median, the diamond the mean. p^ should drop at the dashed line, "
            "the limit.",
            lambda figure, rows: _draw_boxes(rows[0], diagnosis),
        ),
        Plan(
            f"{stem}-reliability",
            f"{name}: is the probability right?",
            "Each point: episodes with about the same p^, and how many of them were acceptable. On the dashed diagonal "
            f"the estimator is calibrated. Larger points: more episodes. Expected calibration error: {error:.2f}.",
            lambda figure, rows: _draw_reliability(rows[0], diagnosis),
        ),
        Plan(
            f"{stem}-examples",
            f"{name}: credit in single episodes",
            "The true cost so far, and the credit of each step. Dashed: the limit. Dotted: where the cost crosses it; "
            "credit should concentrate there.",
            lambda figure, rows: _draw_examples(figure, rows, diagnosis),
            axes=len(diagnosis.examples),
            height=TOP + BOTTOM + 1.2 * len(diagnosis.examples),
            legend=1,
            right=0.55,
        ),
    ]
    if np.isfinite(diagnosis.where_none).any():
        plans.append(
            Plan(
                f"{stem}-where-none",
                f"{name}: credit where there is no cost",
                "For each episode, the mean credit of steps without true cost, divided by that of all steps. Below 1, "
                "credit goes to steps with cost.",
                lambda figure, rows: _draw_where_none(rows[0], diagnosis),
            )
        )
    if np.isfinite(diagnosis.windows).any():
        plans.append(
            Plan(
                f"{stem}-crossing",
                f"{name}: credit around the crossing",
                f"Mean credit in windows of {credits.WINDOW} steps around the step at which the limit is crossed, "
                "divided by the episode's mean; mean and standard deviation over episodes. Above 1 around 0, credit "
                "concentrates at the violation.",
                lambda figure, rows: _draw_windows(rows[0], diagnosis),
            )
        )
    return plans


def _draw_boxes(axes: "Axes", diagnosis: Diagnosis) -> None:
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
        boxprops={"facecolor": PROBABILITY + "66", "edgecolor": PROBABILITY},
        medianprops={"color": PROBABILITY, "linewidth": 1.6},
        meanprops={"marker": "D", "markersize": 3, "markerfacecolor": INK, "markeredgecolor": INK},
        flierprops={"marker": ".", "markersize": 3, "markerfacecolor": INK, "markeredgecolor": "none", "alpha": 0.5},
        whiskerprops=line,
        capprops=line,
    )
    axes.axvline(diagnosis.limit, color=INK, linestyle="--", linewidth=1)
    axes.set_ylim(-0.04, 1.04)
    axes.set(xlabel="true cost of an episode", ylabel="estimated probability p^")


def _draw_reliability(axes: "Axes", diagnosis: Diagnosis) -> None:
    found = credits.reliability(diagnosis.probability, diagnosis.accepted)
    axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1)
    axes.plot(found.predicted, found.accepted, color=PROBABILITY, alpha=0.6)
    sizes = 15 + 150 * found.count / found.count.sum()
    axes.scatter(found.predicted, found.accepted, sizes, color=PROBABILITY, zorder=3, clip_on=False)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="estimated probability p^", ylabel="share acceptable")


def _draw_examples(figure: "Figure", rows: "list[Axes]", diagnosis: Diagnosis) -> None:
    longest = max(len(example.cost) for example in diagnosis.examples)
    for axes, example in zip(rows, diagnosis.examples, strict=True):
        steps = np.arange(1, len(example.cost) + 1)
        axes.plot(steps, example.cost, color=COST, label="true cost so far (left)")
        axes.axhline(diagnosis.limit, color=INK, linestyle="--", linewidth=1)
        axes.tick_params(axis="y", colors=COST)
        axes.tick_params(axis="x", labelbottom=axes is rows[-1])
        axes.set(xlim=(0, longest), ylim=(0, 1.15 * max(example.cost[-1], diagnosis.limit, 1.0)))
        right = axes.twinx()
        right.grid(visible=False)
        right.plot(steps, example.credit, color=CREDIT, linewidth=1.0, label="credit of the step (right)")
        right.tick_params(axis="y", colors=CREDIT)
        right.set_ylim(bottom=0)
        if example.crossing is not None:
            axes.axvline(steps[example.crossing], color=INK, linestyle=":", linewidth=1.2)
    rows[-1].set_xlabel("step of the episode")
    figure.legend(handles=[*axes.lines[:1], *right.lines[:1]], loc="lower left", ncols=2)


def _draw_where_none(axes: "Axes", diagnosis: Diagnosis) -> None:
    known = diagnosis.where_none[np.isfinite(diagnosis.where_none)]
    axes.hist(known, bins=30, range=(0, max(1.2, float(known.max()))), color=CREDIT, alpha=0.8)
    axes.axvline(1.0, color=INK, linestyle="--", linewidth=1)
    mean = float(known.mean())
    axes.axvline(mean, color=INK, linewidth=1)
    axes.set(xlabel="mean credit without cost / mean credit", ylabel="episodes")
    # Above the bars.
    axes.set_ylim(top=1.18 * axes.get_ylim()[1])
    low, high = axes.get_xlim()
    # Where the dashed line is near, on the other side of the mean.
    left = mean < 1.0 if abs(mean - 1.0) < 0.25 * (high - low) else mean > (low + high) / 2
    axes.text(
        mean, 0.98, f"mean {mean:.2f} " if left else f" mean {mean:.2f}", size=8, va="top",
        ha="right" if left else "left", transform=axes.get_xaxis_transform(),
    )  # fmt: skip


def _draw_windows(axes: "Axes", diagnosis: Diagnosis) -> None:
    mean, deviation = curves.mean_and_deviation(diagnosis.windows)
    axes.plot(credits.OFFSETS, mean, color=CREDIT)
    axes.fill_between(credits.OFFSETS, mean - deviation, mean + deviation, color=CREDIT, alpha=0.2, linewidth=0)
    axes.axhline(1.0, color=INK, linestyle="--", linewidth=1)
    axes.axvline(0.0, color=INK, linestyle=":", linewidth=1.2)
    axes.set(xlabel="steps from the crossing", ylabel="credit / mean credit")
    axes.set_ylim(bottom=0)
