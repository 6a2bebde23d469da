"""Virtual environments for programs that do not go together with ours."""

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence


def python_of(folder: pathlib.Path, flag: str, base: str, packages: Sequence[str]) -> str:
    """The Python of a virtual environment, which is made from `base` with `packages` if it is not there.

    flag: the one that names the folder, for messages.
    """
    from traces_jax.host import errors

    python = folder / "bin" / "python"
    if not python.exists():
        found = _interpreter(base)
        if found is None:
            raise errors.UserError(
                f"--{flag}={folder} is not right: it does not exist, and there is no {base} to make it with; the "
                f"folder of a virtual environment with {', '.join(packages)} would be right."
            )
        print(f"making {folder} with {', '.join(packages)}", file=sys.stderr)
        subprocess.run([found, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python.absolute())


def _interpreter(name: str) -> str | None:
    """An interpreter such as python3.10 that runs: on the path, or of pyenv, whose commands on the path may not run."""
    folders = sorted((pathlib.Path.home() / ".pyenv/versions").glob(f"{name.removeprefix('python')}.*/bin"))
    for found in [shutil.which(name), *(str(folder / "python") for folder in folders)]:
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None
