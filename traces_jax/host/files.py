"""Files and folders that appear only when they are complete. What cannot be written is said in one sentence."""

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator

import numpy as np

from traces_jax.host import errors

# The temporary names of `beside`.
_TEMPORARY = re.compile(r"\..*\.\d+\.tmp")


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Turns what the system says of a file that cannot be written into a sentence."""
    try:
        yield
    except OSError as error:
        raise errors.WriteError(f"{path} cannot be written: {error.strerror or error}.") from None


@contextlib.contextmanager
def beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary file that becomes `path` when all went well and vanishes otherwise.

    The process is part of its name: two processes never write to the same one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            # Made anew: a link that lies there under this name would lead out of the folder.
            temporary.unlink(missing_ok=True)
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            yield temporary
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def is_temporary(name: str) -> bool:
    """Whether a file of that name is one that `beside` left behind when its process was killed."""
    return _TEMPORARY.fullmatch(name) is not None


@contextlib.contextmanager
def folder_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary folder that becomes `path`, in place of what was there, when all went well and vanishes otherwise."""
    path = path.resolve()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        work = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        new, old = work / "new", work / "old"
        try:
            new.mkdir()
            yield new
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)


def write_text(path: pathlib.Path, text: str) -> None:
    """A text file."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_arrays(path: pathlib.Path, **arrays: np.ndarray) -> None:
    """An npz file."""
    with beside(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
