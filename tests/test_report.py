"""The report: numbers worked out by hand, folders that are broken in every way, a page that needs nobody else."""

import csv
import html.parser
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from helpers import ROOT, make_config

from traces_jax import config as config_lib
from traces_jax import report, tasks
from traces_jax.host import cli, errors, files
from traces_jax.host.report import canvas, credits, groups, make, pictures, published, read, statistics, tables
from traces_jax.host.show import curves

BALL = "SafetyBallRun-v0"
CHROMIUM = shutil.which("chromium")


def write_run(
    folder: pathlib.Path,
    episodes: dict[str, tuple[list[float], list[float]]] | None = None,
    *,
    labels: dict[str, list[float]] | None = None,
    **changes,
) -> pathlib.Path:
    """A run folder by hand. episodes: lane -> (returns, costs); labels: lane -> labelled trajectories by iteration."""
    settings = {"task": BALL, "steps": 80, "environment": {"count": 2, "steps": 20}, "ppo": {"minibatch": 20}}
    config = make_config(**{**settings, "method": {"source": "traces"}, **changes})
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config_lib.to_json(config))
    if episodes:
        write_evaluation(folder, episodes)
    names = [lane.name for lane in config_lib.lanes(config)]
    labels = {name: [1.0, 2.0] for name in names} if labels is None else labels
    lines = [
        {
            "lane": name, "iteration": iteration, "steps": 40 * (iteration + 1),
            "episode/return": 10.0 * iteration, "episode/cost": 30.0 - iteration, "episode/accepted": None,
            "constraint/multiplier": 0.5, "query/cv_pool": 0.1, "query/cv_picked": 0.2, "stage/collect": 1.0,
            "loss/actor": 0.0, "labels/trajectories": count,
        }
        for name, counts in labels.items()
        for iteration, count in enumerate(counts)
    ]  # fmt: skip
    if config.method.source == "oracle":
        lines = [{key: line[key] for key in line if not key.startswith(("labels", "query"))} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_evaluation(folder: pathlib.Path, episodes: dict[str, tuple[list[float], list[float]]]) -> None:
    returns, costs = (np.asarray([both[part] for both in episodes.values()], np.float32) for part in (0, 1))
    lanes = np.asarray(list(episodes))
    np.savez(folder / "evaluation.npz", lanes=lanes, cost=costs, length=np.ones_like(costs), **{"return": returns})


def write_diagnostics(folder: pathlib.Path, lanes: list[str]) -> None:
    """Episodes of up to 60 steps, one of which ends early; their credit is where the limit of 25 is crossed."""
    rate = np.linspace(0.2, 1.0, 12)
    cost = np.floor(np.arange(1, 61) * rate[:, None]) - np.floor(np.arange(60) * rate[:, None])
    credit = np.where(np.abs(np.cumsum(cost, axis=1) - 25) < 3, 0.5, 0.001)
    cost[0, 40:] = credit[0, 40:] = np.nan
    accepted = (np.nansum(cost, axis=1) <= 25).astype(float)
    spread = lambda values: np.broadcast_to(values, (len(lanes), *values.shape)).astype(np.float32)  # noqa: E731
    np.savez(
        folder / "diagnostics.npz", lanes=np.asarray(lanes), limit=np.float32(25), cost=spread(cost),
        credit=spread(credit), accepted=spread(accepted), length=spread(rate), **{"return": spread(rate)},
    )  # fmt: skip


def read_all(*folders: pathlib.Path) -> tuple[list[list[groups.Group]], list[str]]:
    """The groups of each task, and all notes."""
    found = [(folder.name, *read.read(folder, folder.name)) for folder in folders]
    notes = [(name, note) for name, _, said in found for note in said]
    grouped, repeated = groups.make([lane for _, lanes, _ in found for lane in lanes])
    by_task = [[group for group in grouped if group.task == task] for task in dict.fromkeys(g.task for g in grouped)]
    return by_task, make.list_notes([*notes, *repeated])


def text_of(table: tables.Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


@pytest.fixture(scope="module")
def ball(tmp_path_factory) -> list[pathlib.Path]:
    """TraCeS with seeds 0 and 1 in one folder and 2 in another, and the true cost; all worked out below."""
    root = tmp_path_factory.mktemp("runs")
    first = write_run(
        root / "first",
        {"seed=0": ([10, 20], [20, 30]), "seed=1": ([30, 30], [10, 20])},
        labels={"seed=0": [2, 4], "seed=1": [3, 6]},
        seeds=2,
    )
    write_diagnostics(first, ["seed=0", "seed=1"])
    second = write_run(root / "second", {"seed=2": ([45, 45], [20, 20])}, labels={"seed=2": [4, 8]}, seed=2)
    oracle = write_run(root / "oracle", {"seed=0": ([100, 100], [25, 27])}, method={"source": "oracle"})
    return [first, second, oracle]


@pytest.fixture(scope="module")
def written(ball, tmp_path_factory) -> pathlib.Path:
    """A whole report of these runs and of one that is broken."""
    out = tmp_path_factory.mktemp("out") / "deep" / "report"
    make.make([*ball, ball[0].parent / "nothing"], out)
    return out


def test_numbers_of_the_table_are_those_of_the_raw_episodes(ball):
    """Means of seeds: return 15, 30, 45; cost 25, 15, 20; accepted 1/2, 1, 1; labelled 4, 6, 8 at the end."""
    by_task, notes = read_all(*ball)
    table = tables.results(by_task)[0]
    assert not notes
    assert table.head == ["task", "", "TraCeS", "paper, TraCeS", "PPO-Lagrangian", "paper, PPO-Lagrangian"]
    assert text_of(table) == [
        ["BallRun", "return", "30.0 (12.2)", "457.0 (30.1)", "100.0 (0.0)", "579.5 (332.2)"],
        ["", "cost (limit 25)", "20.0 (4.1)", "24.7 (0.8)", "26.0 (0.0)", "17.8 (28.9)"],
        ["", "labelled trajectories", "6 (2)", "2627 (229)", "-", "-"],
        ["", "accepted", "83 % (24)", "-", "50 % (0)", "-"],
        ["", "seeds", "3", "8", "1", "8"],
    ]
    returns = table.rows[0]
    assert [cell.bold for cell in returns[2:]] == [True, True, False, True]
    # The other return is larger, but over the limit; and the paper's are not ours.
    assert [cell.best for cell in returns[2:]] == [True, False, False, False]


def test_tables_in_every_format(ball, written):
    first = dict(next(csv.DictReader((written / "results.csv").open())))
    assert first["task"] == BALL and first["method"] == "TraCeS" and first["best"] == "true"
    numbers = {name: float(value) for name, value in first.items() if re.fullmatch(r"-?[\d.]+(e-?\d+)?", value)}
    assert numbers["return_std"] == pytest.approx(math.sqrt(150)) and numbers["cost_std"] == pytest.approx(
        math.sqrt(50 / 3)
    )
    assert numbers["labelled_mean"] == 6 and numbers["accepted_mean"] == pytest.approx(5 / 6)
    assert numbers["return_iqm"] == 30 and 15 <= numbers["return_iqm_low"] < numbers["return_iqm_high"] <= 45
    markdown = (written / "results.md").read_text()
    assert "| BallRun | return | **30.0 (12.2)** ★ | **457.0 (30.1)** | 100.0 (0.0) | **579.5 (332.2)** |" in markdown
    latex = (written / "results.tex").read_text()
    assert r"BallRun & return & \textbf{\underline{30.0 (12.2)}} & \textbf{457.0 (30.1)} & 100.0 (0.0) &" in latex
    assert r"83 \% (24)" in latex and latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 3
    page = (written / "index.html").read_text()
    assert '<td class="best"><b>30.0 (12.2) ★</b></td>' in page and '<td class="faint">100.0 (0.0)</td>' in page
    pair = dict(next(csv.DictReader((written / "improvement.csv").open())))
    # No seed of TraCeS returns more than the oracle's; all of them cost less.
    assert (pair["method"], pair["against"]) == ("TraCeS", "PPO-Lagrangian")
    assert (pair["higher_return"], pair["lower_cost"], pair["higher_return_low"]) == ("0.0", "1.0", "")


def test_names_cannot_break_a_table():
    table = tables.Table(
        "<b>t", ["", "a|b", "x_y"], [[tables.Cell("[<i>"), tables.Cell("50 % & $"), tables.Cell("[*](a) &lt; _b_")]]
    )
    assert tables.markdown(table).splitlines() == [
        r"## \<b\>t",
        "",
        r"|  | a\|b | x_y |",
        "| --- | --- | --- |",
        r"| [\<i\> | 50 % & $ | [\*\](a) \&lt; \_b\_ |",
    ]
    # A bracket at the beginning would be taken for the argument of the line's end before it.
    assert r"{}[\textless{}i\textgreater{} & " in tables.latex(table)
    assert r"50 \% \& \$" in tables.latex(table) and r"x\_y" in tables.latex(table)
    assert "&lt;i&gt;" in tables.page(table) and "<i>" not in tables.page(table)


def test_swept_values_are_columns_with_limits_of_their_own(tmp_path):
    lanes = {"seed=0 constraint.cost_limit=25": ([1], [30]), "seed=0 constraint.cost_limit=50": ([2], [30])}
    by_task, _ = read_all(write_run(tmp_path / "a", lanes, sweep="constraint.cost_limit=25,50"))
    (table,) = tables.results(by_task)
    assert table.title == "Settings on BallRun"
    assert table.head[2:4] == ["TraCeS constraint.cost_limit=25", "TraCeS constraint.cost_limit=50"]
    assert [cell.bold for cell in table.rows[0][2:4]] == [False, True]
    assert table.rows[1][1].text == "cost (limit 25, 50)"


def test_settings_are_named_by_what_differs(tmp_path):
    one = {"seed=0": ([1], [1])}
    runs = [write_run(tmp_path / "a", one), write_run(tmp_path / "b", one, ppo={"clip": 0.1, "minibatch": 20})]
    assert [group.setting for group in read_all(*runs)[0][0]] == ["ppo.clip=0.2", "ppo.clip=0.1"]
    # How a run is watched, and what its method never reads, makes no other setting.
    quiet = {"run": {"keep": 7}, "pretrain": {"steps": 50}, "seed": 5}
    runs.append(write_run(tmp_path / "c", {"seed=5": ([3], [1])}, **quiet))
    assert [len(group.lanes) for group in read_all(*runs)[0][0]] == [2, 1]
    many = {"ppo": {"clip": 0.3, "entropy": 0.0, "gamma": 0.9, "minibatch": 20}, "constraint": {"d": 0.5}}
    runs.append(write_run(tmp_path / "d", one, **many))
    assert [group.setting for group in read_all(*runs)[0][0]] == ["a, c", "b", "d"]


def test_a_solver_makes_another_method(tmp_path):
    """With the paper's figures of the same one beside it."""
    one = {"seed=0": ([450.0], [20.0])}
    methods = [("traces", "ppo_lag"), ("traces", "cup"), ("oracle", "ppo_lag"), ("oracle", "cup"), ("oracle", "a:Own")]
    runs = [
        write_run(tmp_path / str(place), one, method={"source": source, "solver": solver})
        for place, (source, solver) in enumerate(methods)
    ]
    (own,), _ = read_all(*runs)
    named = {group.title: group.name for group in own}
    assert named == {
        "traces": "TraCeS", "traces+cup": "TraCeS with CUP", "oracle": "PPO-Lagrangian", "oracle+cup": "CUP",
        "oracle+a:Own": "a:Own",
    }  # fmt: skip
    columns = [entry.name for entry in tables.entries(own)]
    assert columns[columns.index("CUP") + 1] == "paper, CUP"


def test_what_another_solver_reads_makes_no_setting(tmp_path):
    """A folder of an earlier version does not have these fields at all."""
    one = {"seed=0": ([1], [1])}
    old = write_run(tmp_path / "a", one)
    tree = json.loads((old / "config.json").read_text())
    for group in ("pid", "cup", "focops", "p3o", "trust_region", "cpo", "saute"):
        del tree[group]
    del tree["method"]["solver"], tree["method"]["solver_version"]
    (old / "config.json").write_text(json.dumps(tree))
    new = write_run(tmp_path / "b", {"seed=1": ([1], [1])}, seed=1)
    ((group,),), _ = read_all(old, new)
    assert len(group.lanes) == 2


def test_a_seed_counts_once(tmp_path):
    unfinished = write_run(tmp_path / "a", seeds=2)
    evaluated = write_run(tmp_path / "b", {"seed=0": ([7], [1])}, seed=0)
    by_task, notes = read_all(unfinished, evaluated)
    ((group,),) = by_task
    assert [(lane.run, lane.seed) for lane in group.lanes] == [("b", 0), ("a", 1)]
    assert "a: repeats seeds of b, they are counted once." in notes


def break_config(folder):
    (folder / "config.json").write_text('{"task": ')


def drop(name):
    return lambda folder: (folder / name).unlink()


def cut_last_line(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text()[:-30])


def drop_last_line(folder):
    path = folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def fifo(name):
    """In place of a file, something of which nobody ever writes the end."""

    def replace(folder):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return replace


def loop(name):
    def replace(folder):
        (folder / name).unlink()
        (folder / name).symlink_to(folder / name)

    return replace


def huge(name):
    return lambda folder: os.truncate(folder / name, 2**40)


def insert_line(content):
    def insert(folder):
        path = folder / "metrics.jsonl"
        first, rest = path.read_bytes().split(b"\n", 1)
        path.write_bytes(first + b"\n" + content + rest)

    return insert


def replace_arrays(path, arrays):
    with np.load(path) as file:
        given = dict(file)
    np.savez(path, **{**given, **{name: np.asarray(values) for name, values in arrays.items()}})


def evaluated(**arrays):
    """Changes arrays of the evaluation."""
    return lambda folder: replace_arrays(folder / "evaluation.npz", arrays)


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def other_lanes(folder):
    write_evaluation(folder, {"seed=0": ([1], [1])})


def not_finite(folder):
    write_evaluation(folder, {"seed=0": ([1], [math.nan]), "seed=1": ([1], [1])})


def other_shape(folder):
    np.savez(folder / "evaluation.npz", lanes=np.asarray(["seed=0"]), cost=np.ones(3), length=0, **{"return": 1})


def odd_lane(folder):
    write_evaluation(folder, {"nonsense": ([1], [1])})


def change_config(**changes):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def diagnosed(**arrays):
    """Saved credits, with other arrays."""

    def change(folder):
        write_diagnostics(folder, ["seed=0"])
        replace_arrays(folder / "diagnostics.npz", arrays)

    return change


def odd_diagnostics(folder):
    write_diagnostics(folder, ["seed=0"])
    with np.load(folder / "diagnostics.npz") as file:
        credit = file["credit"]
    replace_arrays(folder / "diagnostics.npz", {"credit": credit[:, :, 1:]})


@pytest.mark.parametrize(
    ("damage", "lanes", "note"),
    [
        (shutil.rmtree, 0, "does not exist"),
        (fifo("config.json"), 0, "not shown, config.json is not a file"),
        (loop("config.json"), 0, "not shown, config.json cannot be reached"),
        (huge("config.json"), 0, "not shown, config.json is larger than 1 MB"),
        (drop("config.json"), 0, "not a run folder, it has no config.json"),
        (break_config, 0, "not shown, its config.json is damaged"),
        (write("config.json", b"[1]"), 0, "not shown, its config.json is damaged"),
        (write("config.json", b"\xff\xfe"), 0, "not shown, its config.json is damaged"),
        (change_config(task=None), 0, "not shown, its config.json names no task"),
        (change_config(constraint={}), 0, "not shown, its config.json has no cost limit"),
        (change_config(method={}, lagrange={"cost_limit": 1}), 2, "config.json has no method.source, taken for a run"),
        (drop("metrics.jsonl"), 2, "no metrics.jsonl, so no curves"),
        (fifo("metrics.jsonl"), 2, "metrics.jsonl is not a file, so no curves"),
        (loop("metrics.jsonl"), 2, "metrics.jsonl cannot be reached, so no curves"),
        (huge("metrics.jsonl"), 2, "metrics.jsonl is larger than 4096 MB, so no curves"),
        (write("metrics.jsonl", b""), 2, "metrics.jsonl has no rows, so no curves"),
        (write("metrics.jsonl", b"[1, 2]\n"), 2, "metrics.jsonl has no rows, so no curves"),
        (write("metrics.jsonl", b"[1, 2]\n"), 2, "line 1 is damaged and left out"),
        (write("metrics.jsonl", b'{"lane": "seed=0", "iteration": 0}\n'), 2, "line 1 is damaged and left out"),
        (write("metrics.jsonl", b"\xff\xfe\n"), 2, "line 1 is damaged and left out"),
        (insert_line(b"null\n"), 2, "line 2 is damaged and left out"),
        (cut_last_line, 2, "seeds of unequal length, 1 to 2 of 2 iterations; curves are of those that are left"),
        (drop_last_line, 2, "seeds of unequal length, 1 to 2 of 2 iterations; curves are of those that are left"),
        (change_config(steps=4000), 2, "not finished, 2 of 100 iterations"),
        (drop("evaluation.npz"), 2, "no evaluation.npz, so not in the tables"),
        (fifo("evaluation.npz"), 2, "evaluation.npz is not a file, so not in the tables"),
        (loop("evaluation.npz"), 2, "evaluation.npz cannot be reached, so not in the tables"),
        (evaluated(accepted=[[2], [0]]), 2, "evaluation.npz holds labels other than 0 and 1, so not in the tables"),
        (evaluated(accepted=[["1"], ["0"]]), 2, "evaluation.npz holds an array 'accepted' of str"),
        (evaluated(iteration=0.5), 2, "evaluation.npz holds iterations that are no whole numbers"),
        (evaluated(diverged=[1]), 2, "evaluation.npz holds iterations that are no whole numbers"),
        (evaluated(iteration=1), 2, "evaluated after 1 iterations, though there are rows of 2"),
        (write("evaluation.json", b'{"iteration": 1}'), 2, "evaluated after 1 iterations, though there are rows of 2"),
        (evaluated(diverged=[-1, 1]), 2, "seed=1 became non-finite in iteration 1 and is shown, and counted"),
        (evaluated(length=[[3], [2]]), 2, "by their cost alone, though 1 of 2 ended early"),
        (fifo("diagnostics.npz"), 2, "diagnostics.npz is not a file, so no pictures of credits"),
        (write("evaluation.npz", b"PK\x03\x04 and no more"), 2, "evaluation.npz cannot be read, so not in the tables"),
        (other_lanes, 2, "no evaluation of seed=1"),
        (not_finite, 2, "evaluation.npz holds episodes that are not finite, so not in the tables"),
        (other_shape, 2, "evaluation.npz holds arrays of other shapes than [lanes, episodes], so not in the tables"),
        (odd_lane, 0, "not shown, lane 'nonsense' is not of the form seed=0 field=value"),
        (write("diagnostics.npz", b"x"), 2, "diagnostics.npz cannot be read, so no pictures of credits"),
        (diagnosed(iteration=1), 2, "credits are of the state after 1 iterations, though there are rows of 2"),
        (diagnosed(iteration=0.5), 2, "diagnostics.npz holds iterations that are no whole numbers, so no pictures"),
        (odd_diagnostics, 2, "diagnostics.npz holds arrays of other shapes than [lanes, episodes, steps]"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_folder_is_noted(damage, lanes, note, tmp_path):
    folder = write_run(tmp_path / "run", {"seed=0": ([1], [1]), "seed=1": ([1], [1])}, seeds=2)
    damage(folder)
    found, notes = read.read(folder, "run")
    assert len(found) == lanes
    assert any(note in said for said in notes)
    # Nothing that comes later stumbles over it.
    grouped, _ = groups.make(found)
    assert all(plan.name for plan in pictures.plan(grouped, "stem"))
    tables.results(tables.evaluated([grouped] if grouped else []))


def test_accepted_is_what_the_labeler_says(tmp_path):
    """The second episode costs little but ended early, which the labeler does not accept."""
    folder = write_run(tmp_path / "run", {"seed=0": ([1, 1], [20, 20])})
    evaluated(accepted=[[1, 0]], length=[[10, 3]])(folder)
    ((group,),), notes = read_all(folder)
    assert group.scores("accepted").tolist() == [0.5]
    assert not notes


def test_other_evaluations_are_no_results(tmp_path):
    folder = write_run(tmp_path / "run", {"seed=0": ([1], [20])})
    (folder / "evaluations").mkdir()
    for name in ("best-episodes-5", "step-1-episodes-9", "step-1-seed-0-episodes-9", "step-2-episodes-3"):
        shutil.copy(folder / "evaluation.npz", folder / f"evaluations/{name}.npz")
        (folder / f"evaluations/{name}.json").write_text("{}")
    (folder / "evaluations/best-episodes-5-diagnostics.npz").touch()
    ((group,),), notes = read_all(folder)
    assert group.scores("return").tolist() == [1]
    names = "best-episodes-5, step-1-episodes-9, step-1-seed-0-episodes-9"
    assert notes == [f"run: other evaluations are not shown: {names} and 1 more."]


def test_a_lane_that_became_non_finite_counts_and_has_a_curve_as_long_as_it_went(tmp_path):
    episodes = {"seed=0": ([2], [20]), "seed=1": ([4], [20])}
    folder = write_run(tmp_path / "run", episodes, labels={"seed=0": [1, 2], "seed=1": [1]}, seeds=2)
    evaluated(diverged=[-1, 1], iteration=2)(folder)
    ((group,),), notes = read_all(folder)
    assert group.scores("return").tolist() == [2, 4]
    assert notes == ["run: seed=1 became non-finite in iteration 1 and is shown, and counted, as it was before."]


def test_folders_of_which_the_same_is_said_share_a_note():
    notes = [("a", "not finished"), ("b", "damaged"), ("c", "not finished")]
    assert make.list_notes(notes) == ["a, c: not finished.", "b: damaged."]


def test_interquartile_mean_by_hand():
    assert statistics.interquartile_mean(np.asarray([3.0])) == 3
    # One of four is left out at each end: (2 + 4) / 2. Of six also one: (2 + 3 + 4 + 7) / 4.
    assert statistics.interquartile_mean(np.asarray([90.0, 2.0, 4.0, -9.0])) == 3
    np.testing.assert_array_equal(statistics.interquartile_mean(np.asarray([[7.0, 1, 2, 3, 4, 99]] * 2)), [4, 4])


def test_probability_of_improvement_by_hand():
    """Pairs: 1 > 0, 1 = 1, 1 < 2; 3 > 0, 3 > 1, 3 > 2. So (1 + 1/2 + 3) / 6."""
    better = statistics.probability_of_improvement
    assert better(np.asarray([1.0, 3.0]), np.asarray([0.0, 1.0, 2.0])) == pytest.approx(4.5 / 6)
    assert better(np.asarray([1.0, 3.0]), np.asarray([1.0, 3.0])) == 0.5


def test_bootstrap_by_hand():
    """Two seeds at 0 and 8 are drawn as (0, 0), (0, 8), (8, 0), (8, 8): a quarter of the means are 0, a quarter 8."""
    found = statistics.estimate(statistics.interquartile_mean, np.asarray([0.0, 8.0]))
    assert (found.value, found.low, found.high) == (4, 0, 8)
    # Of twenty seeds at 0 and one at 21, all 2.5 % of draws at the top have that one three times or more.
    many = statistics.estimate(lambda values: values.mean(axis=-1), np.asarray([0.0] * 20 + [21.0]))
    assert (many.value, many.low, many.high) == (1, 0, 3)
    alone = statistics.estimate(statistics.interquartile_mean, np.asarray([5.0]))
    assert alone.value == 5 and math.isnan(alone.low) and math.isnan(alone.high)


def test_credits_by_hand():
    nan = np.nan
    cost = np.asarray([[0, 1, 1, 1, 0], [0, 1, 0, nan, nan], [1, 1, 1, 1, 1]])
    credit = np.asarray([[0.1, 0.2, 0.3, 0.8, 0.1], [0.0, 0.5, 0.1, nan, nan], [0.0] * 5])
    probability = np.asarray([0.2, 0.5, 1.0])
    found = credits.diagnose(cost, credit, probability, np.asarray([0.0, 1.0, 0.0]), limit=2.0)
    np.testing.assert_array_equal(found.total, [3, 1, 5])
    np.testing.assert_array_equal(found.probability, probability)
    # Where there is no cost: (0.1 + 0.1) / 2 over 0.3; (0 + 0.1) / 2 over 0.2; no credit, no ratio.
    np.testing.assert_allclose(found.where_none, [1 / 3, 0.25, nan])
    np.testing.assert_array_equal(credits.first_crossing(cost, 2.0), [3, -1, 2])
    # The costliest acceptable one, the cheapest that is not, the middle one of those.
    assert [example.crossing for example in found.examples] == [None, 3, 2]
    assert len(found.examples[0].cost) == 3
    np.testing.assert_array_equal(found.examples[1].cost, [0, 1, 2, 3, 3])
    # One that ended early and cost little may be the cheapest that is not accepted.
    assert credits.chosen(np.asarray([3, 1, 5, 0]), np.asarray([0.0, 0.0, 0.0, 1.0])) == [3, 1, 0]


def test_windows_around_the_crossing_by_hand():
    """Cost at every step, limit 9: the tenth step crosses. Credit 5 in the five steps around it and 1 elsewhere."""
    cost, credit = np.ones((1, 40)), np.ones((1, 40))
    credit[0, 7:12] = 5.0
    ratios = dict(zip(credits.OFFSETS, credits.window_ratios(cost, credit, 9.0)[0], strict=True))
    assert ratios[0] == pytest.approx(5 / 1.5) and ratios[5] == ratios[-5] == ratios[25] == pytest.approx(1 / 1.5)
    assert math.isnan(ratios[-10]) and math.isnan(ratios[30]), "windows that hang over an end are left out"
    assert credits.window_ratios(cost, credit, 99.0).shape == (0, len(credits.OFFSETS))


def test_reliability_by_hand():
    found = credits.reliability(np.asarray([0.02, 0.06, 0.55, 1.0]), np.asarray([0.0, 1.0, 1.0, 1.0]))
    np.testing.assert_allclose(found.predicted, [0.04, 0.55, 1.0])
    np.testing.assert_allclose(found.accepted, [0.5, 1, 1])
    assert found.count.tolist() == [2, 1, 1]
    assert found.error == pytest.approx((2 * 0.46 + 0.45 + 0) / 4)


@pytest.mark.parametrize("total", [[0, 25, 26], [25], [26, 400], [0, 1000], [3.3, 24.9, 25.1, 31.7]])
def test_every_total_has_a_bin_on_its_side_of_the_limit(total):
    total = np.asarray(total, float)
    edges = credits.cost_bins(total, 25.0)
    place = np.searchsorted(edges, total) - 1
    assert (place >= 0).all() and (place < len(edges) - 1).all() and len(edges) < 20
    np.testing.assert_array_equal(edges[place + 1] <= 25 + 1e-9, total <= 25)


def test_curves_of_seeds_of_unequal_length(tmp_path):
    folder = write_run(tmp_path / "a", labels={"seed=0": [2, 4, 6], "seed=1": [4]}, seeds=2)
    ((group,),), _ = read_all(folder)
    steps, values = group.curve("labels/trajectories")
    np.testing.assert_array_equal(steps, [40, 80, 120])
    mean, deviation = curves.mean_and_deviation(values)
    np.testing.assert_array_equal(mean, [3, 4, 6])
    np.testing.assert_array_equal(deviation, [1, 0, 0])


def test_long_curves_are_thinned_and_gaps_left_out():
    values = np.arange(1000.0)[None]
    values[0, 1] = np.nan
    steps, thinned = pictures.thin(np.arange(1000.0), values)
    assert len(steps) == thinned.shape[1] == 200
    assert (steps[0], thinned[0, 0], thinned[0, 1]) == (2, (0 + 2 + 3 + 4) / 4, 7)


def test_small_numbers_leave_the_title_in_its_place(tmp_path):
    """A power of ten above the axis would push it out of the picture."""
    folder = write_run(tmp_path / "a", labels={"seed=0": [1e-6, 2e-6]})
    (own,), _ = read_all(folder)
    (plan,) = (plan for plan in pictures.plan(own, "a") if plan.name == "a-labels-trajectories")
    with canvas.style():
        svg = canvas.draw(plan).svg
    title = re.search(r'translate\([\d.]+ ([\d.]+)\)">BallRun: labels', svg) or re.search(
        r'y="([\d.]+)"[^>]*>BallRun: labels', svg
    )
    assert title and float(title[1]) > 10 and "2e\N{MINUS SIGN}06" in svg


def test_figures_of_the_paper_are_all_there():
    # People label the one task that is not in its main tables.
    own = {name for name in tasks.NAMES if name.startswith("Safety")} - {"SafetyHalfCheetahFall-v0"}
    assert set(published.TASKS) == own
    assert set(published.PAPER["oracle"]["paper, PPO-Lagrangian"]) == set(published.TASKS)
    for solver, name in [("cppo_pid", "CPPO-PID"), ("cup", "CUP"), ("focops", "FOCOPS"), ("trpo_saute", "TRPO-Saute")]:
        assert set(published.PAPER[f"oracle+{solver}"][f"paper, {name}"]) == set(published.TASKS)


def test_every_picture_is_written_twice(written):
    drawn = sorted(path.name for path in (written / "pictures").iterdir())
    stems = {path.rsplit(".", 1)[0] for path in drawn}
    assert drawn == sorted(f"{stem}.{ending}" for stem in stems for ending in ("svg", "png"))
    curves = ("episode-return", "episode-cost", "constraint-multiplier", "labels-trajectories")
    credit = ("probability", "reliability", "examples", "where-none", "crossing")
    expected = {*curves, "uncertainty", "stages", *(f"traces-{name}" for name in credit)}
    assert stems == {f"ballrun-{name}" for name in expected}
    assert all((written / "pictures" / name).read_bytes()[:4] == b"\x89PNG" for name in drawn if name.endswith("png"))
    # The hidden threshold is dashed.
    assert "stroke-dasharray" in (written / "pictures/ballrun-episode-cost.svg").read_text()


class Page(html.parser.HTMLParser):
    """What a page has in it and refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.names: list[str] = []
        self.references: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.names.append(value)
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"):
                self.references.append(value)
            if not name.startswith("xmlns"):
                self.references += re.findall(r"url\((.*?)\)|(https?:[^\s]+)", value or "") and [value]


def test_the_page_refers_to_nothing_outside(written):
    text = (written / "index.html").read_text()
    page = Page(text)
    assert len(list((written / "pictures").glob("*.svg"))) == 11
    assert page.tags.count("svg") == 11 + 2, "the pictures, and a sample of each group's line in the legend"
    assert not {"script", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    outside = [one for one in page.references if not re.search(r"^#|^data:,$|url\(#", one)]
    assert not outside and "@import" not in text
    inside = {one[1:] for one in page.references if one.startswith("#")}
    assert inside <= set(page.names) and {"results", "notes", "task-1"} <= inside
    assert len(page.names) == len(set(page.names)), "pictures share no names"
    assert "nothing: does not exist." in text


def test_pictures_take_the_colours_of_the_page(written):
    text = (written / "index.html").read_text()
    drawn = text[text.index("<svg") :]
    assert "currentColor" in drawn and canvas.INK not in drawn and canvas.PAPER not in drawn
    assert "prefers-color-scheme: dark" in text
    alone = (written / "pictures/ballrun-episode-return.svg").read_text()
    assert canvas.PAPER in alone and "currentColor" not in alone, "a file of its own has a background"


def browse(
    page: pathlib.Path, folder: pathlib.Path, width: int, scheme: str
) -> tuple[list[str], list[str], np.ndarray]:
    """Opens a page. Returns messages of its console, addresses it asked for, and what is seen [height, width, 3]."""
    from PIL import Image

    log, picture = folder / "net.json", folder / "seen.png"
    environment = {**os.environ, "HOME": str(folder)}
    result = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", f"--log-net-log={log}",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", f"--window-size={width},4000",
            f"--screenshot={picture}", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
    starts = [
        event["params"] for event in json.loads(log.read_text())["events"] if "initiator" in event.get("params", {})
    ]
    # The browser asks its maker for news on its own account.
    asked = [start["url"] for start in starts if start["initiator"] != "not an origin"]
    return said, asked, np.asarray(Image.open(picture).convert("RGB"))


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (500, "dark")])
def test_the_page_in_a_browser(width, scheme, written, tmp_path):
    page = shutil.copy(written / "index.html", tmp_path / "alone.html")
    said, asked, seen = browse(page, tmp_path, width, scheme)
    assert not said and not asked
    background = seen[0, 0].astype(int)
    assert (background > 200).all() if scheme == "light" else (background < 60).all()
    blue = np.asarray([int(canvas.COLORS[0][place : place + 2], 16) for place in (1, 3, 5)])
    lines = (np.abs(seen.astype(int) - blue).sum(axis=-1) < 12).any(axis=1)
    # Rows of the screen that a curve or a box of a picture crosses; and, from there on, letters and axes.
    assert lines.sum() > 100
    ink = np.abs(seen.astype(int) - background).sum(axis=-1) > 400
    assert ink[lines.argmax() :].sum() > 10_000


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_browser_would_have_told(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text('<body><script>console.error("no")</script><img src="http://localhost:9/x.png">')
    said, asked, _ = browse(page, tmp_path, 500, "light")
    assert len(said) == 1 and asked == ["http://localhost:9/x.png"]


def run_main(*arguments: pathlib.Path, out: pathlib.Path | None) -> int:
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(out=str(out) if out else None):
        return report.main([str(argument) for argument in arguments])


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_runs_give_the_same_report_and_matplotlib_stays_as_it_was(tmp_path, capsys):
    import matplotlib

    folder = write_run(tmp_path / "a", {"seed=0": ([1], [1])}, method={"source": "oracle"})
    before = dict(matplotlib.rcParams)
    assert run_main(folder, out=tmp_path / "report") == 0
    assert dict(matplotlib.rcParams) == before
    assert "report:" in capsys.readouterr().out
    first = contents(tmp_path / "report")
    assert run_main(folder, folder, out=tmp_path / "report") == 0
    assert contents(tmp_path / "report") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "report"]


def test_a_report_without_evaluations_shows_curves(tmp_path):
    folder = write_run(tmp_path / "a$b", method={"source": "oracle"})
    assert run_main(folder, out=tmp_path / "report") == 0
    page = (tmp_path / "report/index.html").read_text()
    assert "No run has been evaluated yet." in page and page.count("<svg") == 4
    assert "a$b: no evaluation.npz, so not in the tables." in page


def test_a_report_that_fails_leaves_the_older_one(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a", {"seed=0": ([1], [1])})
    (tmp_path / "report").mkdir()
    (tmp_path / "report/index.html").write_text("older")
    monkeypatch.setattr(canvas, "draw", lambda plan: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_main(folder, out=tmp_path / "report")
    assert contents(tmp_path / "report") == {"index.html": b"older"}
    with pytest.raises(ZeroDivisionError), files.folder_beside(tmp_path / "report") as new:
        (new / "index.html").write_text("newer")
        raise ZeroDivisionError
    assert contents(tmp_path / "report") == {"index.html": b"older"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "report"]


def test_names_are_escaped_wherever_they_go(tmp_path):
    """Folder, task and fields with HTML, line ends, codes of terminals, and what is no text."""
    folders = []
    for place, name in enumerate(["a<script>\n\x1b[31m", os.fsdecode(b"b\xff<script>")]):
        folders.append(write_run(tmp_path / name, {"seed=0": ([1], [1])}))
        odd = {f"{field}<script>\x1b": f"{place}<script>" for field in "ab"}
        change_config(task="=1<script>\x00\ud800", ppo=odd)(folders[-1])
    # So that there is a note, too.
    (folders[0] / "metrics.jsonl").unlink()
    assert run_main(*folders, out=tmp_path / "report") == 0
    texts = {name: content for name, content in contents(tmp_path / "report").items() if not name.endswith(".png")}
    assert len(texts) > 5
    for name, content in texts.items():
        assert not {0, 0x1B} & set(content), name
        if name.endswith(("html", "svg", "md", "tex")):
            assert not re.search(rb"(?<!\\)<script", content), name
    assert b"\\<script\\>" in texts["results.md"] and b"textless{}script" in texts["results.tex"]
    assert "\n'=1<script>" in texts["results.csv"].decode(), "no formula"
    assert "script" not in Page(texts["index.html"].decode()).tags


def test_folders_that_lead_nowhere_do_not_end_a_report(tmp_path):
    folder = write_run(tmp_path / "a", {"seed=0": ([1], [1])})
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    given = [tmp_path / "loop", tmp_path / "pipe", pathlib.Path("/dev/zero"), tmp_path / ("x" * 300), folder]
    assert run_main(*given, out=tmp_path / "report") == 0
    page = (tmp_path / "report/index.html").read_text()
    assert "loop, pipe, zero: not a folder." in page and f"{'x' * 300}: does not exist." in page


def test_refusals_write_nothing(tmp_path):
    folder = write_run(tmp_path / "a", {"seed=0": ([1], [1])})
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.txt").write_text("precious")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = contents(tmp_path)
    for arguments, out, sentence in [
        ([], tmp_path / "report", r"no run folder is given"),
        ([folder], None, r"--out is missing"),
        ([folder], tmp_path / "thesis", r"holds 'thesis.txt', which is no part of a report"),
        ([folder], folder / "config.json", r"is a file; give a folder"),
        ([folder], folder / "config.json/deeper", r"cannot be written"),
        ([folder], tmp_path / "loop", r"is a link that leads nowhere; give a folder"),
        ([tmp_path / "thesis"], tmp_path / "report", r"no run to report on in .*thesis \(not a run folder"),
        ([tmp_path / "b", tmp_path / "c"], tmp_path / "report", r"in .*c \(does not exist\), nor in 1 others"),
    ]:
        with pytest.raises(errors.UserError, match=sentence):
            run_main(*arguments, out=out)
    assert contents(tmp_path) == before


def test_the_command_line_takes_folders_before_and_after_flags(tmp_path, environment):
    run = lambda *arguments: subprocess.run(  # noqa: E731
        [sys.executable, "-m", "traces_jax.report", *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    (tmp_path / "empty").mkdir()
    result = run(str(tmp_path / "empty"), "--out", str(tmp_path / "report"), str(tmp_path / "none"))
    assert result.returncode == 2 and not (tmp_path / "report").exists()
    assert len(result.stderr.strip().splitlines()) == 1
    assert "traces_jax.report: there is no run to report on" in result.stderr and "nor in 1 others" in result.stderr


def test_libraries_say_nothing_to_a_user(environment):
    """Orbax logs each damaged file as an error, with what is in it."""
    code = "from absl import logging; from traces_jax.host import cli; cli.run(lambda: logging.error('inside') or 0)"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_other_commands_take_no_arguments(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "stray"])
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda: 0)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "traces_jax.train: argument 'stray' is not a flag; see --help.\n"
