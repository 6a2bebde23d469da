"""Experiments that come with the package, by name."""

import pathlib

_PACKAGE = pathlib.Path(__file__).parents[1]


def folder() -> pathlib.Path:
    """Where they are: inside an installed package, beside it in a checkout."""
    inside = _PACKAGE / "experiments"
    return inside if inside.is_dir() else _PACKAGE.parent / "experiments"


def names() -> list[str]:
    """The names of all experiments."""
    return sorted(path.stem for path in folder().glob("*.py"))


def choices() -> str:
    """The end of a sentence about an experiment that cannot be found."""
    return f"give a file, or one of {', '.join(names())}"


def find(name: str) -> pathlib.Path:
    """The file of an experiment that is given by its name, such as ball_run, or by its path.

    A path that exists comes first. One below experiments/ that does not, such as experiments/studies/smoke.py, is found
    outside the repository too.
    """
    path = pathlib.Path(name)
    if path.exists() and not path.is_dir():
        return path
    below = path.relative_to("experiments") if path.parts[:1] == ("experiments",) else path
    ours = folder() / (below if below.suffix == ".py" else below.with_name(f"{below.name}.py"))
    return ours if not path.is_absolute() and ours.is_file() else path


def find_study(name: str) -> pathlib.Path:
    """The same for a study: main_table, experiments/studies/main_table.py, or a file."""
    path, ours = find(name), find(f"experiments/studies/{name}")
    return ours if ours.is_file() and not path.is_file() else path
