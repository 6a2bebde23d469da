"""Fuzz the settings: python -m benchmarks.fuzz_config --trees 10000 --seed 0

Makes trees of settings, from slightly wrong to nonsense, and reads each as a saved config. Those that are accepted are
built. Whatever is refused must be refused with one of our own errors, within a second.
"""

import collections
import dataclasses
import json
import random
import time
from collections.abc import Iterator
from typing import Any

from absl import flags

from traces_jax import config as config_lib
from traces_jax import tasks
from traces_jax.config import Config
from traces_jax.host import cli, errors, runtime
from traces_jax.host.run import build

# The tasks whose building loads no model, so that ten thousand take minutes.
CHEAP = [name for name in tasks.NAMES if name.startswith("Probe")]
# Seconds of computing in which a refusal must be there; a clock would count what others do on the machine.
SLOW = 1.0

_NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    10,
    64,
    100,
    1000,
    4096,
    10**6,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63,
    10**30,
    10**400,
)
_FLOATS = (0.0, -0.0, 1e-320, 1e-300, 1e-45, 1e-7, 1e-6, 0.01, 0.5, 0.999999999999, 1.0, 1.5, 3e38, 4e38, 1e300)
_ODD_FLOATS = (float("nan"), float("inf"), float("-inf"))
_TEXTS = ("", "none", "paper", "ours", "oracle", "traces", "a:B", "os:path", "..", "\x00", "é", "1", "x" * 10_000)
_SWEEPS = (
    "ppo.clip=0.1,0.2", "ppo.clip=0.1,0.1", "ppo.clip=1e400", "ppo.clip=" + ",".join(str(n) for n in range(1, 9999)),
    "estimator.clamp=-1,-2; ppo.gamma=0.9,0.99; ppo.clip=0.1,0.2,0.3", "constraint.d=0.5,0.9", "=", ";;", "ppo.clip=,",
    "; ".join(
        f"ppo.{name}={','.join(f'0.{n}' for n in range(1, 10))}" for name in ("clip", "entropy", "gamma", "gae_lambda")
    ),
)  # fmt: skip


@dataclasses.dataclass
class Report:
    """What became of the trees: counts by outcome, and sentences about what should not have happened."""

    outcomes: collections.Counter
    wrong: list[str]
    slowest: float = 0.0


def trees(count: int, seed: int) -> Iterator[Any]:
    """Trees of settings, as JSON could hold them."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _nonsense(chance, 3) if chance.random() < 0.05 else _changed(chance)


def examine(found: Iterator[Any]) -> Report:
    """Reads every tree and builds those that are accepted."""
    report = Report(collections.Counter(), [])
    for tree in found:
        outcome, seconds = _outcome(tree)
        report.outcomes[outcome.partition(":")[0]] += 1
        if outcome.startswith("crashed"):
            report.wrong.append(f"{outcome} for {_text(tree)}")
        if outcome.startswith("refused"):
            report.slowest = max(report.slowest, seconds)
            if seconds > SLOW:
                report.wrong.append(f"{seconds:.1f} s until {outcome} for {_text(tree)}")
    return report


def _outcome(tree: Any) -> tuple[str, float]:
    began = time.process_time()
    try:
        build.build(config_lib.from_saved(tree)).program.abstract()
        outcome = "built"
    except errors.USER_ERRORS as error:
        outcome = f"refused: {error}"
        if "\n" in str(error) or len(str(error)) > 2000:
            outcome = f"crashed: {len(str(error))} characters are no sentence"
    except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
        outcome = f"crashed: {type(error).__name__}: {error}"
    return outcome, time.process_time() - began


def _changed(chance: random.Random) -> dict[str, Any]:
    """A config that could be, with some fields changed; small, so that it can be built."""
    task = chance.choice(CHEAP)
    horizon = tasks.make(task).horizon
    tree: dict[str, Any] = json.loads(config_lib.to_json(Config()))
    tree |= {"task": task, "steps": 400 * horizon}
    tree["environment"] |= {"count": 4, "steps": 10 * horizon}
    tree["ppo"]["minibatch"] = 2 * horizon
    tree["method"]["source"] = chance.choice(("oracle", "traces"))
    for path in chance.sample(sorted(config_lib.all_fields()), chance.choice((0, 1, 1, 2, 3, 8))):
        group, _, name = path.rpartition(".")
        (tree[group] if group else tree)[name] = _value(chance, config_lib.all_fields()[path])
    if chance.random() < 0.1:
        owner = chance.choice([tree, tree["ppo"], tree["query"]])
        owner[chance.choice(("ppo", "clp", "limit", "", "x" * 5000))] = _nonsense(chance, 2)
    if chance.random() < 0.1:
        del tree[chance.choice(sorted(tree))]
    return tree


def _value(chance: random.Random, field: dataclasses.Field) -> Any:
    """A value for a field: of its kind more often than not."""
    kind = chance.random()
    if kind < 0.1:
        return _nonsense(chance, 3)
    if field.name == "sweep":
        return chance.choice(_SWEEPS)
    if field.type is int:
        return chance.choice(_NUMBERS)
    if field.type is float:
        return chance.choice(_FLOATS + _ODD_FLOATS + _NUMBERS)
    if field.type is bool:
        return chance.random() < 0.5
    if field.type is str:
        said = field.metadata["right"].removeprefix("one of ").split(", ")
        return chance.choice([*said, *_TEXTS, *tasks.NAMES])
    length = chance.choice((0, 1, 2, 3, 65, 10_000))
    return [chance.choice(_NUMBERS + _FLOATS[:3]) for _ in range(length)] if kind < 0.5 else [8] * length


def _nonsense(chance: random.Random, depth: int) -> Any:
    """Any JSON value."""
    kind = chance.randrange(9 if depth else 6)
    if kind == 6:
        return [_nonsense(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        names = chance.choices(["ppo", "clip", "query", "", "task", "x"], k=3)
        return {name: _nonsense(chance, depth - 1) for name in names}
    if kind == 8:
        deep: Any = []
        for _ in range(chance.choice((10, 100_000))):
            deep = [deep]
        return deep
    return (
        None,
        chance.random() < 0.5,
        chance.choice((*_NUMBERS, 10**5000, -(10**5000))),
        chance.choice(_FLOATS + _ODD_FLOATS),
        chance.choice(_TEXTS),
        [],
    )[kind]


def _text(tree: Any) -> str:
    """A tree's differences from the defaults, short enough to read."""
    if not isinstance(tree, dict):
        return config_lib.show(tree)
    defaults = config_lib.to_dict(Config())
    different = {name: value for name, value in tree.items() if name not in defaults or value != defaults[name]}
    return config_lib.show(different)


_TREES = flags.DEFINE_integer("trees", 10_000, "How many trees.")
_SEED = flags.DEFINE_integer("seed", 0, "Another has other trees.", allow_override=True)


def main() -> int:
    """The command line."""
    runtime.setup()
    report = examine(trees(_TREES.value, _SEED.value))
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(report.outcomes.items())))
    print(f"slowest refusal: {report.slowest:.2f} s")
    for sentence in report.wrong:
        print(sentence)
    return 1 if report.wrong else cli.OK


if __name__ == "__main__":
    cli.run(main)
