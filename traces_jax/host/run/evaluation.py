"""Evaluation of saved policies: new environments, mean actions, frozen statistics, true costs."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.table
import scipy.special

from traces_jax import tasks
from traces_jax.config import Config
from traces_jax.core import rollout
from traces_jax.core.keys import Stream, stream
from traces_jax.core.learner import Learner, LearnerState
from traces_jax.feedback import labelers, labels
from traces_jax.feedback.trajectories import Cuts, Shown
from traces_jax.host import errors, files, hosts
from traces_jax.host.run import build as build_lib
from traces_jax.sources import Credits

# Probability that a certificate's bound is above the true share.
_RISK = 0.05
# Name of a run's main evaluation.
_CLOSING = "evaluation"


def episodes(built: build_lib.Built, state: LearnerState, count: int) -> dict[str, np.ndarray]:
    """Runs `count` episodes with every lane's mean policy: return, cost, length, accepted, label, [S, count] each.

    What nobody knows is NaN: cost and accepted of a task without a cost, labels where people would have to look.
    """
    program, by = built.program, built.config.labels.by

    def one_lane(settings: Config, state: LearnerState) -> tuple[dict[str, jax.Array], Shown | None]:
        return first_episodes(program.learner, settings, state, count)

    result, shown = hosts.values(jax.jit(program.map_lanes(one_lane))(program.settings, state))
    if shown is not None:
        lanes = [jax.tree.map(lambda leaf, lane=lane: leaf[lane], shown) for lane in range(len(built.lanes))]
        result["label"] = np.stack([np.asarray(labelers.judged(by, one)) < 0 for one in lanes]).astype(np.float32)
    return {name: np.asarray(value) for name, value in result.items()}


def first_episodes(
    learner: Learner, settings: Config, state: LearnerState, count: int
) -> tuple[dict[str, jax.Array], Shown | None]:
    """One lane: `count` environments, each until its first episode ends. Returns arrays [count].

    And what a user's function would be shown of these episodes, if it is the labeler.
    """
    task, kind = learner.task, labelers.kind(settings.labels.by)
    starts, resets = (learner.environments.keys(stream(state.key, i, Stream.EVALUATE), count=count) for i in (0, 1))
    quiet = jnp.zeros((task.horizon, starts.shape[0], task.action_size))
    watch = labelers.watch(task) if kind == labelers.FUNCTION else None
    _, transitions, truth = rollout.run(
        task,
        learner.player(settings, state),
        learner.start(settings, starts),
        quiet,
        resets,
        watch or (lambda _: None),
    )
    transitions, truth = learner.environments.gather((transitions, truth))
    first = jnp.argmax(truth.ended, axis=0)
    pick = lambda values: jnp.take_along_axis(values, first[None], axis=0)[0, :count]  # noqa: E731
    accepted = pick(learner.accepted(settings, truth.episode_cost, transitions.terminated).astype(jnp.float32))
    unknown = jnp.full_like(accepted, jnp.nan)
    label, shown = unknown, None
    if kind == labelers.ORACLE:
        label = labels.flip(accepted, stream(state.key, 2, Stream.EVALUATE), settings.labels.noise)
    elif kind == labelers.FUNCTION:
        of_first = jnp.zeros((count,), jnp.int32)
        cuts = Cuts(of_first, jnp.arange(count), first[:count] + 1, dropped=jnp.zeros((), jnp.int32))
        seen = (transitions.observation, transitions.action, truth.watched)
        observation, action, positions = jax.tree.map(lambda leaf: cuts.take(leaf, task.horizon), seen)
        shown = Shown(observation, action, cuts.length, positions)
    return {
        "return": pick(truth.episode_return),
        "cost": pick(truth.episode_cost),
        "length": pick(truth.episode_length),
        "accepted": accepted if task.has_cost else unknown,
        "label": label,
    }, shown


@flax.struct.dataclass
class NoisyEpisodes:
    """Episodes of one lane with action noise.

    Attributes:
      transitions, truth: [T, B, ...]; steps after an episode's end belong to the next one.
      length: [B].
      accepted: [B] 1 or 0, the label of the full episode.
    """

    transitions: rollout.Transitions
    truth: rollout.Truth
    length: jax.Array
    accepted: jax.Array

    def at_end(self, values: jax.Array) -> jax.Array:
        """The values [T, B] at each episode's last step, [B]."""
        return jnp.take_along_axis(values, self.length[None] - 1, axis=0)[0]


def noisy_episodes(
    learner: Learner,
    settings: Config,
    state: LearnerState,
    name: Stream,
    block: jax.Array,
    count: int,
    *,
    limit: jax.Array | float,
    noise: jax.Array | float = 1.0,
    watch: Callable[[tasks.State], Any] = lambda _: None,
) -> NoisyEpisodes:
    """One lane: `count` environments, each until its first episode ends.

    name, block: [] select the random numbers; limit: summed cost up to which the labeler accepts; noise: [] multiple of
    the policy's own; watch: see `rollout.run`.
    """
    task, environments = learner.task, learner.environments
    starts, acts, resets = (
        environments.keys(stream(state.key, 3 * block + part, name), count=count) for part in range(3)
    )
    _, transitions, truth = rollout.run(
        task,
        learner.player(settings, state),
        learner.start(settings, starts),
        noise * rollout.noise(acts, task.horizon, task.action_size),
        resets,
        watch,
    )
    transitions, truth = jax.tree.map(lambda leaf: leaf[:, :count], environments.gather((transitions, truth)))
    last = jnp.argmax(truth.ended, axis=0)
    answers = labels.oracle(
        truth.cost.T,
        last + 1,
        jnp.take_along_axis(transitions.terminated, last[None], axis=0)[0],
        limit=limit,
        ends=np.asarray([task.horizon]),
        early_end_violates=settings.labels.early_end == "violating",
    )
    return NoisyEpisodes(transitions, truth, length=last + 1, accepted=answers[:, -1])


@dataclasses.dataclass(frozen=True)
class Episode:
    """One full episode.

    Attributes:
      qpos: [T, nq] after each step.
      cost: [T] true cost of each step.
      credit: [T] expected cost of each step by the estimator; None without one.
      probability: [T] of being acceptable up to and including each step, by the estimator; None without one.
      limit: of the summed true cost.
    """

    qpos: np.ndarray
    cost: np.ndarray
    credit: np.ndarray | None
    probability: np.ndarray | None
    limit: float


def episode(built: build_lib.Built, state: LearnerState) -> Episode:
    """An episode of the first lane's mean policy."""
    program = built.program
    learner = program.learner
    task = learner.task

    def one_lane(settings: Config, state: LearnerState) -> tuple[rollout.Truth, Credits | None]:
        starts, resets = (stream(state.key, i, Stream.EVALUATE)[None] for i in (0, 1))
        quiet = jnp.zeros((task.horizon, 1, task.action_size))
        _, transitions, truth = rollout.run(
            task,
            learner.player(settings, state),
            learner.start(settings, starts),
            quiet,
            resets,
            watch=lambda state: state.pipeline_state.qpos,
        )
        return truth, credits(learner, settings, state, transitions.observation, transitions.action)

    result = jax.device_get(jax.jit(program.map_lanes(one_lane))(program.settings, state))
    truth, said = jax.tree.map(lambda leaf: np.asarray(leaf)[0, :, 0], result)
    length = int(np.argmax(truth.ended)) + 1
    return Episode(
        qpos=truth.watched[:length],
        cost=truth.cost[:length],
        credit=None if said is None else said.credit[:length],
        probability=None if said is None else np.exp(said.log_probability[:length]),
        limit=built.lanes[0].config.constraint.cost_limit,
    )


def credits(
    learner: Learner, settings: Config, state: LearnerState, observation: jax.Array, action: jax.Array
) -> Credits | None:
    """What the estimator says of full episodes, raw observation [T, B, O] and action [T, B, A].

    None for a cost source without an estimator.
    """
    return learner.source.credits(settings, state.source, state.normalizers.observation, observation, action)


def certificate(label: np.ndarray) -> dict[str, float]:
    """What labels [N], 1 or 0, of random episodes prove: a lower bound of the share of acceptable ones.

    The bound is Clopper and Pearson's: it is above the true share with a probability of at most 5 %.
    """
    count, accepted = len(label), int(label.sum())
    bound = float(scipy.special.betaincinv(accepted, count - accepted + 1, _RISK)) if accepted else 0.0
    return {"labels": count, "accepted": accepted, "bound": bound}


def summarize(result: dict[str, np.ndarray], lanes: list[str], settings: list[str]) -> dict:
    """Per lane means, and mean (population std) over the seeds of each setting."""
    per_lane = [
        {
            "lane": name,
            "return": float(result["return"][i].mean()),
            "cost": float(result["cost"][i].mean()),
            "accepted": float(result["accepted"][i].mean()),
            "length": float(result["length"][i].mean()),
        }
        for i, name in enumerate(lanes)
    ]
    groups = []
    for setting in dict.fromkeys(settings):
        rows = [row for row, own in zip(per_lane, settings, strict=True) if own == setting]
        group: dict = {"setting": setting, "seeds": len(rows)}
        for key in ("return", "cost", "accepted", "length"):
            values = np.asarray([row[key] for row in rows])
            group[key] = {"mean": float(values.mean()), "std": float(values.std())}
        groups.append(group)
    return {"lanes": per_lane, "settings": groups}


def table(summary: dict, task: str, episodes_per_seed: int) -> rich.table.Table:
    """The result as a table."""
    result = rich.table.Table(title=f"{task}: mean (std) over seeds, {episodes_per_seed} episodes each")
    for column in ("", "seeds", "return", "cost", "accepted"):
        result.add_column(column, justify="left" if not column else "right")
    for group in summary["settings"]:
        cells = [f"{group[key]['mean']:.1f} ({group[key]['std']:.1f})" for key in ("return", "cost")]
        accepted = f"{100 * group['accepted']['mean']:.0f} % ({100 * group['accepted']['std']:.0f})"
        result.add_row(group["setting"] or "all", str(group["seeds"]), *cells, accepted)
    return result


def closing(folder: pathlib.Path) -> tuple[int, int] | None:
    """Finished iterations and episodes of a run's main evaluation, `evaluation.json`; None if there is none."""
    try:
        found = files.read_json(folder / f"{_CLOSING}.json")
        return int(found["iteration"]), int(found["episodes"])
    except (errors.UserError, ValueError, KeyError, TypeError, OverflowError):
        return None


def is_closing(place: pathlib.Path) -> bool:
    """Whether a path is that of a run's main evaluation."""
    return place.name == _CLOSING


def place(
    folder: pathlib.Path, step: str, seed: int | None, iterations: np.ndarray, count: int, *, newest: bool
) -> pathlib.Path:
    """Where an evaluation is saved: a path without suffix.

    A run's main evaluation covers all lanes at the newest checkpoint. It is replaced only by one of a later checkpoint,
    or of the same one with at least as many episodes. Any other evaluation has a name that says what was evaluated.

    step, seed, count: as requested; iterations: [S] of the states; newest: whether these are all lanes at the newest
    checkpoint.
    """
    known = closing(folder)
    if newest and (known is None or (int(iterations[0]), count) >= known):
        return folder / _CLOSING
    which = "best" if step == "best" else f"{'deployed' if step == 'deployed' else 'step'}-{iterations[0]}"
    of = "" if seed is None else f"-seed-{seed}"
    return folder / "evaluations" / f"{which}{of}-episodes-{count}"


def evaluate(
    built: build_lib.Built,
    state: LearnerState,
    place: pathlib.Path,
    *,
    iterations: np.ndarray,
    count: int,
    deployed: bool = False,
) -> dict:
    """Evaluates, prints the table, saves it as place.json and the raw episodes as place.npz.

    iterations: [S] finished iterations of the states; deployed: whether these are the states' policies to deploy. They
    are certified, if the cost is learned: the labels of some of the episodes bound the share of acceptable ones.
    """
    learner = built.program.learner
    kept = state.kept if deployed else None
    result = episodes(built, learner.deployed(state) if deployed else state, count)
    label = result.pop("label")
    names = [lane.name for lane in built.lanes]
    summary = summarize(result, names, [name.partition(" ")[2] for name in names])
    diverged = np.asarray(hosts.values(state.diverged))
    for row, iteration, end in zip(summary["lanes"], iterations, diverged, strict=True):
        row["iteration"] = int(iteration)
        if end >= 0:
            row["diverged"] = int(end)
    played, gap = (None, None) if kept is None else map(np.asarray, hosts.values((kept.iteration, kept.gap)))
    certified = min(count, built.config.run.certificate) if deployed and learner.source.learns else 0
    if certified and np.isnan(label).any():
        print(f"no certificate: labels.by={built.config.labels.by} does not label the episodes of an evaluation")
        certified = 0
    for lane, row in enumerate(summary["lanes"]):
        if played is not None and gap is not None:
            row |= {"policy": int(played[lane]), "satisfied": bool(gap[lane] <= 0)}
        if certified:
            row["certificate"] = certificate(label[lane, :certified])
    iteration = int(iterations.max())
    summary = {"task": built.config.task, "iteration": iteration, "episodes": count, **summary}
    # JSON has no NaN, which is the cost of a task without one.
    known = jax.tree.map(lambda value: None if isinstance(value, float) and math.isnan(value) else value, summary)
    if hosts.first():
        with files.writing(place.parent):
            place.parent.mkdir(exist_ok=True)
        files.write_arrays(
            place.with_name(f"{place.name}.npz"),
            lanes=np.asarray(names),
            iteration=np.asarray(iteration),
            diverged=diverged,
            **result,
        )
        files.write_text(place.with_name(f"{place.name}.json"), json.dumps(known, indent=2) + "\n")
    console = rich.console.Console()
    console.print(table(summary, built.config.task, count))
    if played is not None:
        print(f"policy: the newest that satisfied the constraint, of iteration {', '.join(map(str, played))}")
        for row in summary["lanes"]:
            if not row["satisfied"]:
                print(f"note: {row['lane']} never satisfied it; its policy is the one that came nearest")
    if certified:
        bounds = ", ".join(f"{100 * row['certificate']['bound']:.0f} %" for row in summary["lanes"])
        print(f"certificate: {certified} labels prove, with 95 % confidence, that at least {bounds} are acceptable")
    for name, end in zip(names, diverged, strict=True):
        if end >= 0:
            print(f"note: {name} became non-finite in iteration {end}; its state before that was evaluated")
    return summary
