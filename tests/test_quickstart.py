"""The notebook: its cells are those of the paired script, and they run."""

import json
import re
import subprocess
import sys

from helpers import ROOT

SCRIPT, NOTEBOOK = ROOT / "examples/quickstart.py", ROOT / "examples/quickstart.ipynb"


def cells(text):
    """Kind and source of each cell of a script in jupytext's percent format."""
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            yield "markdown", re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)
        else:
            yield "code", body.strip()


def test_the_notebook_is_the_script():
    """After a change of the script: jupytext --sync examples/quickstart.py."""
    notebook = json.loads(NOTEBOOK.read_text())
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]] == list(
        cells(SCRIPT.read_text())
    )


def test_the_script_runs(tmp_path, environment):
    """With a fortieth of the steps."""
    source = SCRIPT.read_text()
    steps = "config.steps = 200_000"
    assert steps in source
    short = source.replace(
        steps, "config.steps = 5_000; config.run.evaluation_episodes = 2; config.run.certificate = 2"
    )
    (tmp_path / "quickstart.py").write_text(short)
    quick = {"MPLBACKEND": "agg", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "quickstart.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, **quick}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the estimator's probability is") == 3
    assert "labelled episodes: 7 of 50" in done.stdout
