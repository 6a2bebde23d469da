"""Plots of an estimator on evaluated episodes: calibration, and where credit goes."""

from typing import TYPE_CHECKING

import numpy as np

from traces_jax.host.report import credits, groups
from traces_jax.host.report.canvas import BOTTOM, COLORS, INK, TOP, Plan
from traces_jax.host.report.credits import Diagnosis
from traces_jax.host.report.groups import Group
from traces_jax.host.show import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plan(group: Group, diagnosis: Diagnosis, stem: str) -> list[Plan]:
    """The plots of one group. stem: prefix of their file names."""
    title = f"{groups.short(group.task)}, {group.name}"
    plans = [
        Plan(
            f"{stem}-probability",
            f"{group.name}: estimated probability against true cost",
            "Boxes: quartiles of the estimated probability of being acceptable; diamonds: means. It should drop at the "
            "dashed line, the hidden threshold.",
            lambda figure, rows: _draw_boxes(rows[0], diagnosis, title),
        ),
        Plan(
            f"{stem}-reliability",
            f"{group.name}: reliability",
            "Acceptance rate of the labeler among episodes with about the same estimated probability; on the diagonal "
            "the estimator is calibrated. Larger points: more episodes.",
            lambda figure, rows: _draw_reliability(rows[0], diagnosis, title),
        ),
        Plan(
            f"{stem}-examples",
            f"{group.name}: credit of single episodes",
            "Credit of each step, and the true cost so far. The dotted line is where it crosses the hidden threshold: "
            "credit should concentrate near it.",
            lambda figure, rows: _draw_examples(figure, rows, diagnosis, title),
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
                f"{group.name}: credit where there is no cost",
                "For each episode, mean credit of steps without true cost divided by mean credit of all steps. Below "
                "1, credit goes to steps with cost.",
                lambda figure, rows: _draw_where_none(rows[0], diagnosis, title),
            )
        )
    if np.isfinite(diagnosis.windows).any():
        plans.append(
            Plan(
                f"{stem}-crossing",
                f"{group.name}: credit around the crossing",
                f"Mean credit in windows of {credits.WINDOW} steps around the step at which the hidden threshold is "
                "crossed, divided by the episode's mean; mean and standard deviation over episodes. Above 1 around 0, "
                "credit concentrates at the violation.",
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
