"""What may import what, and that importing the package leaves the process as it was."""

import ast
import json
import pathlib
import subprocess
import sys

import pytest

import traces_jax
from traces_jax.core.keys import Stream

PACKAGE = pathlib.Path(traces_jax.__file__).parent
# The command lines and what serves them; everything else is the core, which only computes.
OUTSIDE = {
    *("host", "__init__", "__main__", "train", "evaluate", "replay", "score", "collect", "pretrain", "watch", "report"),
    *("study", "export", "label", "gym"),
}
CORE = [
    path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).with_suffix("").parts[0] not in OUTSIDE
]
FORBIDDEN = ("traces_jax.host", "absl", "orbax", "matplotlib", "rich", "tensorboardX")


def imported(path):
    """Dotted names of everything a file imports, anywhere in it; `from a import b` counts as a and a.b."""
    module = ["traces_jax", *path.relative_to(PACKAGE).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = ".".join([*(module[: -node.level] if node.level else []), *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def is_within(name, package):
    return name == package or name.startswith(package + ".")


def python(code):
    """Runs code in a fresh interpreter. Returns what its last line of output says, as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_core_is_what_we_think_it_is():
    """The tests below say nothing about files that are not found."""
    names = {path.relative_to(PACKAGE).as_posix() for path in CORE}
    assert names >= {
        "config/schema.py", "core/learner.py", "core/parallel.py", "core/rollout.py", "core/keys.py",
        "physics/native.py", "physics/mjx.py", "tasks/velocity.py", "solvers/ppo.py", "sources/traces.py",
    }  # fmt: skip
    assert set(imported(PACKAGE / "train.py")) >= {"absl.flags", "traces_jax.host.cli"}, "the reader must see imports"


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_core_imports_nothing_of_the_host(path):
    wrong = [name for name in imported(path) for package in FORBIDDEN if is_within(name, package)]
    assert not wrong


def test_the_core_loads_nothing_of_the_host():
    """Dynamically too. Brax and Chex load absl, and Flax loads rich: those two cannot be kept out."""
    packages = [package for package in FORBIDDEN if package not in ("absl", "rich")]
    loaded = python(
        "import json, sys\n"
        "from traces_jax.core import learner, parallel\n"
        f"packages = {packages!r}\n"
        "print(json.dumps([m for m in sys.modules for p in packages if m == p or m.startswith(p + '.')]))"
    )
    assert loaded == []


def test_importing_the_package_changes_nothing():
    """Neither the environment nor JAX's settings: that is for command lines to decide (`host.runtime.setup`)."""
    changed = python(
        "import json, os, importlib, pkgutil\n"
        "import jax\n"
        "from absl import flags\n"
        "look = lambda: ({f'environment {k}': v for k, v in os.environ.items()}\n"
        "                | {f'jax {k}': repr(v) for k, v in jax.config.values.items()})\n"
        "before = look()\n"
        "import traces_jax\n"
        "names = [m.name for m in pkgutil.walk_packages(traces_jax.__path__, 'traces_jax.')]\n"
        "assert 'traces_jax.host.runtime' in names and 'traces_jax.train' in names\n"
        "for name in names:\n"
        "    importlib.import_module(name)\n"
        # Command lines never share a process, so they may share names of flags.
        "    for flag in list(flags.FLAGS): delattr(flags.FLAGS, flag)\n"
        "after = look()\n"
        "assert len(before) > 50\n"
        "changed = {k for k in before | after if before.get(k) != after.get(k)}\n"
        "print(json.dumps({k: [before.get(k), after.get(k)] for k in changed}))"
    )
    # tensorboardX and Gymnasium set one variable each, for their own imports.
    assert changed.keys() <= {"environment CRC32C_SW_MODE", "environment PYGAME_HIDE_SUPPORT_PROMPT"}, changed


def test_streams_keep_their_numbers():
    """A number is part of a run's identity: renumbering would give every seed another run. New ones go to the end."""
    assert {name.name: name.value for name in Stream} == {
        "INIT": 0, "RESET": 1, "ACT": 2, "SHUFFLE": 3, "EVALUATE": 4, "RESET_LATER": 5, "ESTIMATOR": 6, "QUERY": 7,
        "LABEL": 8, "REFIT": 9, "CREDIT": 10, "DIAGNOSE": 11, "COLLECT": 12,
    }  # fmt: skip


# --- The packages --------------------------------------------------------------------------------------------------

MODULES = {
    ".".join(("traces_jax", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def test_the_package_root_holds_entry_points_only():
    """Each is a command, or a class for users of another library."""
    root = {path.stem for path in PACKAGE.glob("*.py")}
    assert root == OUTSIDE - {"host"} | {"brax"}


def test_no_file_is_longer_than_a_few_pages():
    long = {name: count for name, path in MODULES.items() if (count := len(path.read_text().splitlines())) > 400}
    assert not long


def edges(name, path):
    """Modules that a module imports when it is loaded: at its top level, not inside functions."""
    tree = ast.parse(path.read_text())
    functions = {id(node) for outer in ast.walk(tree) if isinstance(outer, ast.FunctionDef) for node in ast.walk(outer)}
    for node in ast.walk(tree):
        if id(node) in functions or not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        found = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from ({one if one in MODULES else node.module for one in found} & MODULES.keys()) - {name}


def test_no_import_cycle():
    """Neither between modules nor, besides `core` and what it is made of, between packages of the host."""
    graph = {name: set(edges(name, path)) for name, path in MODULES.items()}
    assert graph["traces_jax.core.learner"] >= {"traces_jax.sources", "traces_jax.core.rollout"}, "imports are seen"
    done: set[str] = set()

    def visit(name, trail):
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_no_host_file_asks_which_source_or_solver_it_is():
    """Sources and solvers answer for themselves, so that a new one needs no change in the host.

    `collect` chooses the oracle for its behaviours, and the report reads folders of any version by name.
    """
    named = {
        path.relative_to(PACKAGE).as_posix()
        for path in sorted((PACKAGE / "host").rglob("*.py"))
        if any(
            (isinstance(node, ast.Constant) and node.value in ("oracle", "traces", "ct", "rlsf", "ppo_lag"))
            or (isinstance(node, ast.Attribute) and node.attr in ("Traces", "Oracle", "CT", "RLSF", "PPOLag"))
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }  # fmt: skip
    assert named <= {"host/data/collect.py", "host/report/groups.py", "host/report/read.py", "host/report/published.py"}
