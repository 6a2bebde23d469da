"""Files and folders as bytes, for workers that do not see each other's disks."""

import io
import pathlib
import tarfile
import tempfile
from collections.abc import Sequence

from traces_jax.host import files


def pack(root: pathlib.Path, names: Sequence[str]) -> bytes:
    """What is there of some files and folders. names: paths below root."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as parcel:
        for name in names:
            if (root / name).exists():
                parcel.add(root / name, arcname=name)
    return stream.getvalue()


def unpack(parcel: bytes, root: pathlib.Path, names: Sequence[str]) -> None:
    """Puts what was packed into its place, one after the other, instead of what is there."""
    with tempfile.TemporaryDirectory(dir=root, prefix=".parcel_") as folder:
        with tarfile.open(fileobj=io.BytesIO(parcel)) as opened:
            opened.extractall(folder, filter="data")
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if (pathlib.Path(folder) / name).exists():
                files.remove(root / name)
                (pathlib.Path(folder) / name).rename(root / name)
