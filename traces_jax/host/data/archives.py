"""Reads untrusted zip archives. The memory that unpacking needs is checked before anything is unpacked.

An archive ends with a directory of its members, which is not trusted: a member is read only up to its declared size,
and a size that its packed bytes cannot unpack to is refused.
"""

import contextlib
import dataclasses
import io
import pathlib
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping

# Enough for some ten thousand members.
_DIRECTORY_BYTES = 1 << 20
# Maximum compression ratio of deflate.
DENSEST = 1032
_PIECE = 1 << 20
_SENSIBLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Exceptions of Python's zipfile for damaged content; it does not document them all.
BROKEN = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError, AttributeError, LookupError, RuntimeError,
    MemoryError, OverflowError,
)  # fmt: skip


class ArchiveError(Exception):
    """What is wrong with an archive, phrased to follow its name in a sentence."""


def short(text: str) -> str:
    """A name from a file, cut to a length that fits into an error message."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


@dataclasses.dataclass(frozen=True)
class Archive:
    """An open archive.

    Attributes:
      members: directory entries by name.
      size: bytes of the archive itself.
    """

    members: Mapping[str, zipfile.ZipInfo]
    size: int
    _zip: zipfile.ZipFile

    def check_total(self, names: Iterable[str], most: int) -> None:
        """Refuses members that together unpack to more bytes than `most`."""
        total = sum(self.members[name].file_size for name in names)
        if total > most:
            raise ArchiveError(f"unpacks to {total} bytes; at most {most} are read")

    def read(self, name: str) -> bytearray:
        """All bytes of a member, as many as it declares."""
        content = bytearray()
        try:
            with self._zip.open(self.members[name]) as member:
                # In pieces, so that a member is never in memory twice. zipfile stops at the declared size.
                while piece := member.read(_PIECE):
                    content += piece
        except BROKEN as error:
            raise ArchiveError(f"is damaged: {type(error).__name__} in {short(name)}") from None
        if len(content) != self.members[name].file_size:
            raise ArchiveError(f"is damaged: {short(name)} is cut short")
        return content


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[Archive]:
    """Opens an archive and checks its directory."""
    try:
        # Opening a pipe would wait for somebody to write into it.
        if path.exists() and not path.is_file():
            raise ArchiveError("is not a file")
        file = _File(path)
    except (OSError, ValueError) as error:
        raise ArchiveError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    with file:
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile:
            raise ArchiveError("is not a complete zip archive") from None
        except BROKEN as error:
            raise ArchiveError(f"is damaged: {type(error).__name__} in its directory") from None
        file.most = sys.maxsize
        with archive:
            size = path.stat().st_size
            members = {info.filename: info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise ArchiveError("is damaged: two members have one name")
            for name, info in members.items():
                _check(name, info, size)
            yield Archive(members, size, archive)


class _File(io.FileIO):
    """A file that returns at most `most` bytes at a time, because zipfile reads the whole directory at once."""

    most = _DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self.most:
            raise ArchiveError(f"has a directory of {size} bytes; at most {self.most} are read")
        return super().read(size) or b""


def _check(name: str, info: zipfile.ZipInfo, size: int) -> None:
    if info.flag_bits & 1:
        raise ArchiveError(f"is encrypted: {short(name)} cannot be read")
    if info.compress_type not in _SENSIBLE:
        raise ArchiveError(f"packs {short(name)} with an unknown compression; deflate or none would be right")
    if info.compress_size > size or info.file_size > DENSEST * info.compress_size:
        raise ArchiveError(f"is damaged: {short(name)} declares {info.file_size} bytes and has fewer")
