"""Groups lanes for comparison: lanes with the same task, method and setting are seeds of one group."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from traces_jax.host.report import credits, published
from traces_jax.host.report.read import Lane

_SOLVERS = {
    "cppo_pid": "CPPO-PID",
    "cup": "CUP",
    "focops": "FOCOPS",
    "p3o": "P3O",
    "trpo_lag": "TRPO-Lagrangian",
    "cpo": "CPO",
    "trpo_saute": "TRPO-Saute",
    "ppo_saute": "PPO-Saute",
    "ppo": "PPO",
    "trpo": "TRPO",
}
# Source, or "source+solver", as studies name them too.
METHODS = {
    "traces": "TraCeS",
    "ct": "C-T",
    "rlsf": "RLSF",
    "oracle": "PPO-Lagrangian",
    **{f"oracle+{solver}": name for solver, name in _SOLVERS.items()},
}
# Fields that do not affect training (logging, or how estimator.init was created). Lanes that differ only in these are
# pooled.
_NO_SETTING = r"(task|seed|seeds|sweep|method\.(source|solver)|(run|collect|pretrain)\..*)"
# Fields that a method does not read.
_OF_TRACES = r"estimator\.(?!init$).*|query\.(rule|random_share|min_cv)|constraint\.(form|d)"
_UNUSED = {
    "traces": r"(ct|rlsf)\..*",
    "ct": rf"rlsf\..*|{_OF_TRACES}",
    "rlsf": rf"ct\..*|{_OF_TRACES}",
    "oracle": r"(estimator|ct|rlsf|labels|query|refit|constraint\.(form|d|shape|correction)|method\.order)\b.*",
}
# Fields that PPO-Lagrangian does not read. Folders of earlier versions do not have them.
_OF_OTHER_SOLVERS = r"((pid|cup|focops|p3o|cpo|saute|trust_region)\..*|method\.solver_version)"
# Settings that differ in more fields than this are named after their folder.
_MOST_FIELDS = 3


@dataclasses.dataclass(frozen=True)
class Group:
    """Seeds of one task, method and setting. setting: how it differs from others of its task and method."""

    task: str
    source: str
    setting: str
    lanes: list[Lane]

    @property
    def method(self) -> str:
        source, _, solver = self.source.partition("+")
        if self.source in METHODS or not solver:
            return METHODS.get(self.source, source)
        # With the true cost, a method is its solver.
        solver = _SOLVERS.get(solver, solver)
        return solver if source == "oracle" else f"{METHODS.get(source, source)} with {solver}"

    @property
    def name(self) -> str:
        """Method and setting."""
        return f"{self.method} {self.setting}".strip()

    @property
    def title(self) -> str:
        """Method and setting as a study names them."""
        return f"{self.source} {self.setting}".strip()

    @property
    def limit(self) -> float:
        """The hidden threshold; the same for all lanes of a setting."""
        return self.lanes[0].limit

    def scores(self, name: str) -> np.ndarray:
        """Mean over the episodes of each evaluated seed, [S]. name: return, cost, length or accepted."""
        return np.asarray([lane.episodes[name].mean(dtype=float) for lane in self.lanes if lane.episodes])

    def labels(self) -> np.ndarray:
        """Labelled trajectories of each seed that had any, [S]."""
        counts = [lane.rows.get("labels/trajectories", np.zeros(0)) for lane in self.lanes]
        return np.asarray([count[np.isfinite(count)][-1] for count in counts if np.isfinite(count).any()])

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Environment steps [I] and the values of each seed [S, I], NaN where a seed has none."""
        lanes = [lane.rows for lane in self.lanes if name in lane.rows]
        if not lanes:
            return np.zeros(0), np.zeros((0, 0))
        steps = np.unique(np.concatenate([rows["steps"] for rows in lanes]))
        values = np.full((len(lanes), len(steps)), np.nan)
        for seed, rows in enumerate(lanes):
            values[seed, np.searchsorted(steps, rows["steps"])] = rows[name]
        return steps, values

    def diagnosis(self) -> credits.Diagnosis | None:
        """Diagnosis of all seeds whose credits were saved."""
        parts = [lane.diagnosis for lane in self.lanes if lane.diagnosis]
        return credits.pool(parts) if parts else None


def short(task: str) -> str:
    """A task's name in the paper: HalfCheetah for SafetyHalfCheetahVelocity-v1."""
    return re.sub(r"^Safety(\w+?)(Velocity)?-v\d+$", r"\1", task)


def make(lanes: Sequence[Lane]) -> tuple[list[Group], list[tuple[str, str]]]:
    """Groups in the order of the paper's tasks, TraCeS first; and notes (folder, text) on duplicate seeds."""
    methods = list(METHODS)
    place = lambda lane: (  # noqa: E731
        index(published.TASKS, lane.task),
        lane.task,
        index(methods, lane.source),
        lane.source,
    )
    groups: list[Group] = []
    notes: list[tuple[str, str]] = []
    for kind in sorted({place(lane) for lane in lanes}):
        own = [lane for lane in lanes if place(lane) == kind]
        settings = [_setting(lane) for lane in own]
        differing = [
            path for path in dict.fromkeys(path for one in settings for path in one) if _differs(settings, path)
        ]
        pooled: dict[str, list[Lane]] = {}
        for lane, setting in zip(own, settings, strict=True):
            pooled.setdefault(json.dumps(setting, sort_keys=True, default=str), []).append(lane)
        for members in pooled.values():
            seeds, repeated = _each_seed_once(members)
            notes += repeated
            groups.append(Group(own[0].task, own[0].source, _name(seeds, differing), seeds))
    return groups, notes


def index(known: Sequence[str], name: str) -> int:
    """Position of a name for sorting; unknown names come last."""
    return known.index(name) if name in known else len(known)


def _setting(lane: Lane) -> dict[str, object]:
    """The fields of a lane that affect training."""
    source, _, solver = lane.source.partition("+")
    unused = "|".join(filter(None, (_UNUSED.get(source, ""), "" if solver else _OF_OTHER_SOLVERS)))
    return {
        path: value
        for path, value in lane.settings.items()
        if not re.fullmatch(_NO_SETTING, path) and not re.fullmatch(unused, path)
    }


def _differs(settings: Sequence[Mapping[str, object]], path: str) -> bool:
    return any(path not in one or one[path] != settings[0].get(path) for one in settings)


def _name(lanes: Sequence[Lane], differing: Sequence[str]) -> str:
    """lanes: of one setting. differing: fields in which settings of its task and method differ."""
    labels = {lane.label for lane in lanes}
    if len(labels) == 1 and None not in labels:
        return labels.pop() or ""
    if len(differing) > _MOST_FIELDS:
        return f"{', '.join(dict.fromkeys(lane.run for lane in lanes))} {lanes[0].swept}".strip()
    setting = _setting(lanes[0])
    return " ".join(f"{path}={_text(setting[path]) if path in setting else 'unset'}" for path in differing)


def _text(value: object) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _each_seed_once(lanes: Sequence[Lane]) -> tuple[list[Lane], list[tuple[str, str]]]:
    """Removes duplicate seeds, which are copies of the same run. Keeps one with an evaluation, if any has one."""
    kept: dict[int, Lane] = {}
    notes = []
    for lane in lanes:
        known = kept.setdefault(lane.seed, lane)
        if known is lane:
            continue
        if lane.episodes and not known.episodes:
            kept[lane.seed] = lane
            known, lane = lane, known
        notes.append((lane.run, f"repeats seeds of {known.run}, they are counted once"))
    return [kept[seed] for seed in sorted(kept)], list(dict.fromkeys(notes))
