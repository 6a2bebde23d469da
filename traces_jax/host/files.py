"""Files that are either whole or absent."""

import os
import pathlib

import numpy as np


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes beside and renames."""
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def write_arrays(path: pathlib.Path, **arrays: np.ndarray) -> None:
    """An npz, written beside and renamed."""
    beside = path.with_name(path.name + ".tmp")
    with beside.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    os.replace(beside, path)
