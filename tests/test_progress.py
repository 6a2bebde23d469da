"""What is said while a run goes on, under a clock that the test turns."""

import types

import numpy as np
import pytest

from traces_jax.host.run import progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds; a test sets `now`."""
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def said_after(clock, capsys, view: progress.Progress, now: float, done: int) -> str:
    clock.now = now
    view.update(done, {name: np.ones((1, 2)) for name in ("episode/return", "episode/cost", "constraint/multiplier")})
    return capsys.readouterr().out


@pytest.mark.parametrize("before", [0, 20])
def test_compiling_does_not_count(clock, capsys, before):
    """A minute of compiling, then chunks of ten iterations in 20 seconds: 40 left take 80, whatever was done before."""
    view = progress.Progress(before + 60, 100)
    with view:
        view.begin(before)
        capsys.readouterr()
        assert said_after(clock, capsys, view, 60.0, before + 10).endswith("  - steps/s  - left\n")
        assert said_after(clock, capsys, view, 80.0, before + 20).endswith("  50 steps/s  0:01:20 left\n")
        assert said_after(clock, capsys, view, 160.0, before + 60).endswith("  50 steps/s  0:00:00 left\n")


def test_a_single_chunk_leaves_nothing(clock, capsys):
    view = progress.Progress(10, 100)
    assert said_after(clock, capsys, view, 60.0, 10).endswith("  - steps/s  0:00:00 left\n")


def test_lines_keep_their_distance(clock, capsys):
    view = progress.Bar("step", 100, period=10.0)
    for now in range(25):
        clock.now = float(now)
        view.show(now + 1, "loss")
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["1/100", "11/100", "21/100"]
