"""The terminal view: curves as text, and frames of run folders in every state they can be in."""

import io
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import rich.console
from absl import flags
from absl.testing import flagsaver
from helpers import ROOT, make_config

from traces_jax import config as config_lib
from traces_jax import watch
from traces_jax.config import Config
from traces_jax.host import errors
from traces_jax.host.run import metrics
from traces_jax.host.show import curves, view

TRACES = {
    "task": "ProbeBudget",
    "seeds": 4,
    "steps": 400,  # ten iterations
    "environment": {"count": 2, "steps": 20},
    "ppo": {"minibatch": 20},
    "method": {"source": "traces"},
    "constraint": {"cost_limit": 3.0},
}
BRAILLE = "".join(chr(0x2800 + number) for number in range(1, 256))


def a_run(folder: pathlib.Path, rows: int, **changes: object) -> Config:
    """A run folder with the rows of so many iterations."""
    config = make_config(**{**TRACES, **changes})
    folder.mkdir()
    (folder / "config.json").write_text(config_lib.to_json(config))
    if rows:
        (folder / "metrics.jsonl").write_text("".join(line(config, i, n) for i in range(rows) for n in lanes(config)))
    return config


def lanes(config: Config) -> range:
    return range(len(config_lib.lanes(config)))


def line(config: Config, iteration: int, lane: int, /, **changes: object) -> str:
    """A row as training writes it."""
    row = {
        "lane": config_lib.lanes(config)[lane].name,
        "iteration": iteration,
        "steps": 40 * (iteration + 1),
        "seconds": 2.0 * (iteration + 1),
        "episode/return": 100.0 * lane + iteration,
        "episode/cost": float(iteration),
        "episode/accepted": 1.0 / (1 + iteration),
        "constraint/multiplier": 0.001 * iteration,
        "finite": 1.0,
    }
    if config.method.source == "traces":
        row |= {"estimate/probability": 0.9, "labels/trajectories": 4.0 * (iteration + 1)}
    return json.dumps(row | changes) + "\n"


def shown(folder: pathlib.Path, config: Config, width: int = 80, height: int | None = None) -> list[str]:
    """The lines of a frame."""
    seen = view.View(folder, config)
    seen.look()
    return printed(seen, width, height)


def printed(seen: view.View, width: int = 80, height: int | None = None) -> list[str]:
    console = rich.console.Console(width=width, record=True, file=io.StringIO())
    console.print(seen.frame(width, height))
    return console.export_text().splitlines()


# --- Curves --------------------------------------------------------------------------------------------------------


def test_a_rising_line():
    """Eight dots wide and eight high: one step up for each step to the right."""
    lines = curves.plot(np.arange(8.0)[None], width=12, height=2)
    assert lines == ["      7│  ⡠⠊", "      0│⡠⠊  "]


def test_mean_spread_and_mark():
    """Lanes at 0 and 8 have mean 4 and reach from 0 to 8; the mark is drawn where nothing else is."""
    values = np.tile([[0.0], [8.0]], (1, 30))
    lines = curves.plot(values, width=28, height=5, marks=[10.0, 4.0])
    assert lines[0] == "     10│" + curves.MARK * 20
    assert lines[1] == lines[3] == "       │" + curves.SPREAD * 20
    assert lines[2].startswith("       │") and set(lines[2][8:]) <= set(BRAILLE)
    assert lines[4] == "      0│" + curves.SPREAD * 20


def test_spread_stays_within_what_was_seen():
    """One of four lanes at 1: a standard deviation below the mean would be a negative cost."""
    values = np.tile([[0.0], [0.0], [0.0], [1.0]], (1, 5))
    assert curves.plot(values, width=20, height=4)[-1].startswith("      0│")


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        (np.zeros((3, 0)), [0]),
        (np.full((2, 5), np.nan), [0]),
        (np.full((2, 5), np.inf), [0]),
        (np.asarray([[3.0]]), [1]),
        (np.asarray([[np.nan, 3.0, np.nan]]), [1, 2]),
    ],
    ids=["no iterations", "unknown", "infinite", "one row", "one value"],
)
def test_little_or_nothing_to_draw(values: np.ndarray, drawn: list[int]):
    lines = curves.plot(values, width=30, height=4)
    assert [len(one) for one in lines] == [30] * 4
    assert sum(letter in BRAILLE for one in lines for letter in one) in drawn
    assert curves.SPREAD not in "".join(lines)


def test_gaps_are_bridged_and_many_iterations_averaged():
    gap = curves.plot(np.asarray([[0.0, np.nan, np.nan, 0.0]]), width=28, height=3, bounds=(-1.0, 1.0))
    assert all(letter in BRAILLE for letter in gap[1][8:])
    # 1, -1, 1, -1 ... has the mean 0 in every column.
    waves = curves.plot(np.tile([1.0, -1.0], 1000)[None], width=28, height=3)
    assert (
        waves[0].strip() == "0.5│" and waves[2].strip() == "-0.5│" and all(letter in BRAILLE for letter in waves[1][8:])
    )


def test_lanes_of_unequal_length():
    """Where only one lane has come so far, the mean is its value."""
    mean, deviation = curves.mean_and_deviation(np.asarray([[1.0, 2.0, 3.0], [3.0, np.nan, np.nan]]))
    np.testing.assert_array_equal(mean, [2.0, 2.0, 3.0])
    np.testing.assert_array_equal(deviation, [1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (25.0, "25"), (0.1234, "0.123"), (-0.01234, "-0.0123"), (0.00012, "1.2e-4"), (174.25, "174.2"),
        (432.0, "432"), (-1482.3, "-1482"), (-99999.0, "-99999"), (1.25e6, "1.2e6"), (-1e-15, "0"), (np.nan, "-"),
        (-1e12, "-1.0e12"),
    ],
)  # fmt: skip
def test_short_numbers(value: float, text: str):
    assert curves.short(value) == text


def test_the_axis_below_a_curve():
    """As wide as what is right of the scale; without a name where there is no room for it."""
    assert curves.axis("1", "iteration", "60", width=38) == "1 " + "─" * 7 + " iteration " + "─" * 7 + " 60"
    assert curves.axis("1", "iteration", "60", width=20) == "1 " + "─" * 7 + " 60"


# --- Rows that are being written -----------------------------------------------------------------------------------


def test_only_complete_lines_are_taken_in(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 2)
    path = tmp_path / "run/metrics.jsonl"
    follower = metrics.Follower(path, [lane.name for lane in config_lib.lanes(config)], 10, ["episode/cost"])
    follower.look()
    next_line = line(config, 2, 0)
    for part in (next_line[:30], next_line[30:-1], "\n"):
        assert np.isnan(follower.values["episode/cost"][:, 2:]).all()
        with path.open("a") as file:
            file.write(part)
        follower.look()
    np.testing.assert_array_equal(follower.values["episode/cost"][0, :4], [0, 1, 2, np.nan])
    assert np.isnan(follower.values["episode/cost"][1:, 2:]).all()


def test_a_resumed_run_forgets_what_was_dropped(tmp_path: pathlib.Path):
    """Rows after the last checkpoint are written anew by the run; the watcher must not keep the old ones."""
    config = a_run(tmp_path / "run", 6)
    names = [lane.name for lane in config_lib.lanes(config)]
    follower = metrics.Follower(tmp_path / "run/metrics.jsonl", names, 10, ["episode/cost"])
    follower.look()
    metrics.MetricWriter(tmp_path / "run", dict.fromkeys(names, 3), say=pytest.fail).close()
    follower.look()
    np.testing.assert_array_equal(np.isfinite(follower.values["episode/cost"]).sum(axis=1), [3] * 4)


def test_damaged_and_foreign_lines_are_passed_over(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 0)
    good = line(config, 0, 0) + line(config, 1, 0)
    bad = [
        "{\n", "\n", "[1, 2]\n", "3\n", "null\n", "{}\n", '{"lane": "seed=9", "iteration": 0}\n', "\xff\xfe\n",
        line(config, 7, 1, **{"episode/cost": "dear"}), line(config, 10**9, 1), line(config, 0, 1, iteration=-1),
        line(config, 0, 1, iteration=float("inf")), line(config, 0, 1, seconds=10**400),
        line(config, 0, 1, iteration=None), line(config, 0, 1, lane=["seed=1"]),
    ]  # fmt: skip
    (tmp_path / "run/metrics.jsonl").write_bytes(("".join(bad) + good).encode("latin-1"))
    lines = shown(tmp_path / "run", config)
    assert "iteration 2/10" in lines[0]
    assert any(one.split() == ["seed=0", "1", "1", "0.5", "0.9", "1.0e-3", "8"] for one in lines)


# --- Frames --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("count", [1, 4, 100])
@pytest.mark.parametrize("source", ["traces", "oracle"])
def test_frames_fit_their_width(width: int, count: int, source: str, tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 3, seeds=count, method={"source": source})
    lines = shown(tmp_path / "run", config, width)
    text = "\n".join(lines)
    assert max(len(one) for one in lines) <= width
    assert "iteration 3/10" in text and "120 steps each" in text
    assert f"{40 * count / 2:,.0f} steps/s" in text and "0:00:14 left" in text
    assert ("labels 12" in text) == ("estimated 0.9" in text) == (source == "traces")
    assert "(limit 3)" in text and curves.MARK in text
    assert (curves.SPREAD in text) == (count > 1)
    # Every lane has its line; when there are several, one more says their mean.
    assert sum(one.startswith(" seed=") for one in lines) == count
    assert any(one.split()[0:2] == ["mean", curves.short(50.0 * (count - 1) + 2)] for one in lines) == (count > 1)


@pytest.mark.parametrize(("width", "height"), [(80, 23), (120, 40), (200, 60)])
def test_frames_fit_their_height(width: int, height: int, tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 3, seeds=100)
    lines = shown(tmp_path / "run", config, width, height)
    assert height - 3 <= len(lines) <= height
    hidden = 100 - sum(one.startswith(" seed=") for one in lines)
    assert lines[-1].strip() == f"{hidden} more lanes; --once shows all."


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_names_and_numbers_are_whole(width: int, tmp_path: pathlib.Path):
    """Names break between their parts, numbers nowhere; figures for which there is no room are left out."""
    sweep = "lagrange.proportional=0.12345,1; constraint.cost_limit=3,5"
    config = a_run(tmp_path / "run", 3, seeds=2, sweep=sweep)
    lines = shown(tmp_path / "run", config, width)
    assert max(len(one) for one in lines) <= width
    (head,) = (number for number, one in enumerate(lines) if one.startswith(" lane "))
    names, numbers = slice(0, lines[head].index("return")), slice(lines[head].index("return"), None)
    first = "".join(one[names].strip() for one in lines[head + 2 :]).replace(" ", "")
    assert first.startswith("seed=0lagrange.proportional=0.12345constraint.cost_limit=3seed=1")
    assert any("=0.12345" in one or one.strip().startswith("0.12345") for one in lines)
    expected = ["2", "2", "0.333", "0.9", "2.0e-3", "12"]
    assert lines[head + 2][numbers].split() == expected[: 2 if width == 40 else 4 if width == 60 else 6]
    assert "(limit 3, 5)" in "\n".join(lines)


def test_frames_with_long_names_fit_their_height(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 3, seeds=20, sweep="lagrange.proportional=0.12345,1; constraint.cost_limit=3,5")
    assert len(shown(tmp_path / "run", config, 80, 40)) <= 40


def test_before_the_first_row(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 0)
    assert "no iteration is finished yet" in shown(tmp_path / "run", config)[-1]
    (tmp_path / "run/metrics.jsonl").write_text(line(config, 0, 0)[:20])
    assert "iteration 0/10" in shown(tmp_path / "run", config)[0]


def test_a_single_row_of_a_single_lane(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 0)
    (tmp_path / "run/metrics.jsonl").write_text(line(config, 0, 2))
    lines = shown(tmp_path / "run", config)
    assert any(one.split() == ["seed=2", "200", "0", "1", "0.9", "0", "4"] for one in lines)
    assert any(one.split() == ["seed=0", *"------"] for one in lines)
    assert "steps/s" not in lines[0], "one row tells no speed"


def test_numbers_that_are_missing(tmp_path: pathlib.Path):
    """No episode ended in the newest iteration: the one before is shown. Of one figure nothing is known at all."""
    config = a_run(tmp_path / "run", 0, seeds=1)
    unknown = {"constraint/multiplier": None}
    rows = line(config, 0, 0, **unknown) + line(config, 1, 0, **unknown, **{"episode/return": None})
    rows += line(config, 2, 0, **unknown).replace('"episode/cost": 2.0', '"episode/cost": NaN')
    (tmp_path / "run/metrics.jsonl").write_text(rows)
    lines = shown(tmp_path / "run", config)
    assert any(one.split() == ["seed=0", "2", "1", "0.333", "0.9", "-", "12"] for one in lines)
    assert any("multiplier - " in one for one in lines)


def test_a_complete_run_and_an_old_one(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 9)
    hour_ago = time.time() - 3600
    os.utime(tmp_path / "run/metrics.jsonl", (hour_ago, hour_ago))
    seen = view.View(tmp_path / "run", config)
    assert not seen.look()
    assert "last update 1:00:0" in " ".join(printed(seen)[:2])
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.writelines(line(config, 9, lane) for lane in range(3))
    assert not seen.look(), "one lane's row is missing"
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write(line(config, 9, 3))
    assert seen.look()
    assert "iteration 10/10  400 steps each  complete" in printed(seen)[0]


def test_the_clock_of_a_resumed_run_starts_anew(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 0, seeds=1)
    rows = [line(config, i, 0, seconds=seconds) for i, seconds in enumerate((100.0, 200.0, 1.0, 101.0))]
    (tmp_path / "run/metrics.jsonl").write_text("".join(rows))
    assert "0:10:00 left" in " ".join(shown(tmp_path / "run", config)[:2])


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_iterations_of_a_chunk_share_a_time(chunk: int, tmp_path: pathlib.Path):
    """Rows are written when a chunk is done. The first took a minute longer, as it was compiled."""
    config = a_run(tmp_path / "run", 0, seeds=1, steps=4000, run={"chunk": chunk})
    ends = [60.0 + 3.0 * (i // chunk + 1) * chunk for i in range(20)]
    (tmp_path / "run/metrics.jsonl").write_text("".join(line(config, i, 0, seconds=ends[i]) for i in range(20)))
    head = " ".join(shown(tmp_path / "run", config)[:2])
    # 40 steps in 3 seconds; 80 iterations are left.
    assert "13 steps/s" in head and "0:04:00 left" in head


def test_one_chunk_tells_no_speed(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 0, seeds=1, run={"chunk": 5})
    (tmp_path / "run/metrics.jsonl").write_text("".join(line(config, i, 0, seconds=60.0) for i in range(5)))
    assert "steps/s" not in " ".join(shown(tmp_path / "run", config)[:2])


def test_a_lane_that_ended_early_does_not_keep_a_run_from_being_complete(tmp_path: pathlib.Path):
    config = a_run(tmp_path / "run", 4)
    seen = view.View(tmp_path / "run", config)
    assert not seen.look() and not seen.look()
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.writelines(line(config, i, lane) for i in range(4, 10) for lane in range(3))
    assert not seen.look(), "the last lane's rows may be on their way"
    assert seen.look()
    assert "1 of 4 lanes non-finite complete" in " ".join(printed(seen)[:2])


# --- The command line ----------------------------------------------------------------------------------------------


def run_main(folder: pathlib.Path | None, **changes: object) -> int:
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(run=None if folder is None else str(folder), **changes):
        return watch.main()


class Terminal(rich.console.Console):
    """Says that it is one."""

    def __init__(self):
        super().__init__(force_terminal=True, width=80, height=24, color_system=None)


def test_looks_again_until_the_run_is_complete(tmp_path: pathlib.Path, monkeypatch, capsys):
    config = a_run(tmp_path / "run", 8)
    naps = []

    def sleep(seconds: float) -> None:
        with (tmp_path / "run/metrics.jsonl").open("a") as file:
            file.writelines(line(config, 8 + len(naps), lane) for lane in lanes(config))
        naps.append(seconds)

    monkeypatch.setattr(rich.console, "Console", Terminal)
    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert run_main(tmp_path / "run", seconds=1.5) == 0
    said = capsys.readouterr().out
    assert naps == [1.5, 1.5]
    assert "iteration 8/10" in said and "iteration 9/10" in said and "complete" in said


def test_control_c_and_once_end_it(tmp_path: pathlib.Path, monkeypatch, capsys):
    a_run(tmp_path / "run", 8)

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rich.console, "Console", Terminal)
    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert run_main(tmp_path / "run") == 0
    monkeypatch.setattr(watch.time, "sleep", None)
    assert run_main(tmp_path / "run", once=True) == 0
    assert capsys.readouterr().out.count("iteration 8/10") >= 2


def test_what_cannot_be_watched(tmp_path: pathlib.Path):
    (tmp_path / "thesis.txt").write_text("precious")
    for folder in (tmp_path, tmp_path / "thesis.txt", tmp_path / "nothing"):
        with pytest.raises(errors.UserError, match=r"is not a run folder: it has no config\.json\.$"):
            run_main(folder)
    with pytest.raises(errors.UserError, match="--run is missing"):
        run_main(None)
    with pytest.raises(errors.UserError, match=r"--seconds=0\.0 is not right"):
        run_main(tmp_path, seconds=0.0)


def test_without_a_terminal_it_prints_one_frame(tmp_path: pathlib.Path, capsys):
    a_run(tmp_path / "run", 3)
    assert run_main(tmp_path / "run") == 0
    assert capsys.readouterr().out.count("iteration 3/10") == 1


def test_command_line(tmp_path: pathlib.Path, environment):
    program = [sys.executable, "-m", "traces_jax.watch", "--run", str(tmp_path)]
    refused = subprocess.run(program, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr == f"traces_jax.watch: {tmp_path} is not a run folder: it has no config.json.\n"
