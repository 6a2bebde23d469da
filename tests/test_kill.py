"""Runs that are killed. A file of its own: it is the longest test, and files are shared out over processes."""

import signal
import subprocess

from helpers import assert_same_run, command, rows_written, wait_for

from traces_jax.host.run import checkpoint


def test_killed_twice_and_interrupted_loses_nothing(tmp_path, environment):
    """Signal 9 in the middle of training, and again amid saves; Ctrl-C saves at once. The end equals a quiet run."""
    folder = tmp_path / "run"
    for rows in (12, 40):
        child = subprocess.Popen(command(folder), env=environment, stdout=subprocess.DEVNULL)
        wait_for(lambda rows=rows: rows_written(folder) >= rows)
        child.kill()
        child.wait()
        kept = checkpoint.Checkpoints(folder / "checkpoints", identity=None, read_only=True).iterations()
        # Saving is asynchronous: at worst the save of the last interval was cut off.
        assert kept and kept[-1] >= rows - 10
    child = subprocess.Popen(command(folder), env=environment, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: rows_written(folder) >= 60)
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 3 and "saved" in output
    stopped = rows_written(folder)
    assert checkpoint.Checkpoints(folder / "checkpoints", identity=None, read_only=True).iterations()[-1] == stopped
    short = tmp_path / "short"
    assert subprocess.run(command(folder), env=environment, stdout=subprocess.DEVNULL).returncode == 0
    assert subprocess.run(command(short), env=environment, stdout=subprocess.DEVNULL).returncode == 0
    assert_same_run(folder, short)
