"""Study files and experiment files, read with one sentence for whatever is wrong in them."""

import pathlib
import re
import runpy
from typing import Any

from traces_jax import config as config_lib
from traces_jax.host import cli, errors, shipped
from traces_jax.host.study.rows import Row, Study


def study(path: pathlib.Path) -> Study:
    """What get_study() of a file returns."""
    found = _call(path, "get_study")
    if not isinstance(found, Study) or not all(isinstance(row, Row) for row in found.rows):
        raise errors.UserError(
            f"get_study() of {path} returns {config_lib.show(found)}; a Study of Rows would be right."
        )
    if not found.rows:
        raise errors.UserError(f"{path} has no rows; one would be right.")
    titles = {row.title for row in found.rows}
    for title in (title for pair in found.compare for title in pair):
        if title not in titles:
            raise config_lib.unknown(f"row to compare in {path}", title, sorted(titles))
    return found


def experiment(task: str) -> dict[str, Any]:
    """The settings of an experiment file, given by its path or by the name of its task."""
    return _call(experiment_path(task), "get_config").to_dict()


def experiment_path(task: str) -> pathlib.Path:
    """BallRun -> experiments/ball_run.py, of this folder or of the package."""
    if task.endswith(".py"):
        return pathlib.Path(task)
    return shipped.find(f"experiments/{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', task).lower()}.py")


def _call(path: pathlib.Path, function: str) -> Any:
    """What a function of a file returns."""
    if not path.is_file():
        raise errors.UserError(f"{path} does not exist; a Python file with {function}() would be right.")
    try:
        found = runpy.run_path(str(path))
        if function not in found:
            raise errors.UserError(f"{path} has no function {function}().")
        return found[function]()
    except errors.USER_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001  the file is a user's program and may raise anything
        raise errors.UserError(f"{path} cannot be read: {cli.one_line(error)}") from None
