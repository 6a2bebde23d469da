"""Arrays in files that were made to break their reader, or broke on the way: one sentence, no more work."""

import io
import os
import pathlib
import shutil
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from traces_jax import replay, score, tasks
from traces_jax.host import errors
from traces_jax.host.data import archives, arrays, prior
from traces_jax.host.report import read as report_read

# --- npz -----------------------------------------------------------------------------------------------------------


def npy(values, header: str | None = None, version=(1, 0)) -> bytes:
    """An .npy file. header: what it says of itself, if that is not true."""
    file = io.BytesIO()
    np.save(file, values)
    if header is None:
        return file.getvalue()
    return np.lib.format.magic(*version) + struct.pack("<H", len(header)) + header.encode() + values.tobytes()


def described(shape: str, descr: str = "'<f8'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


def archive(path: pathlib.Path, members: dict[str, bytes], packing=zipfile.ZIP_STORED) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def patch(path: pathlib.Path, local: int, directory: int, value: bytes) -> None:
    """Changes the first member in its own header and in the directory, each at an offset."""
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\3\4", local), (b"PK\1\2", directory)):
        place = content.index(signature) + offset
        content[place : place + len(value)] = value
    path.write_bytes(content)


SIX = np.arange(6.0)
HEADERS = {
    "too large a shape": (described(f"({10**15},)"), "not the size that it declares"),
    "too large for a computer": (described(f"({2**62}, {2**62})"), "not the size that it declares"),
    "too large and empty": (described(f"(0, {2**62}, {2**62})"), "not the size that it declares"),
    "too small a shape": (described("(5,)"), "not the size that it declares"),
    "negative": (described("(-1, -6)"), "not the size that it declares"),
    "many dimensions": (described(str((1,) * 200 + (6,))), "not the size that it declares"),
    "a part of what is there": (described("(3,)", "'(2,)<f8'"), None),
    "nothing, many times": (described(str((10**15,)), "'<U0'"), "not the size that it declares"),
    "objects": (described("(6,)", "'|O'"), "an array of Python's objects"),
    "half a header": (described("(6,)")[:-9] + "'''", "is no array"),
    "open brackets": ("(" * 5000, "is no array"),
    "no type": (described("(6,)", "'<f9'"), "is no array"),
    "odd type": (described("(6,)", "[[[]]]"), "is no array"),
    "no text": ("\udc80", "is no array"),
    "long": (described("(6,)") + " " * 60000, "is no array"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers(case, tmp_path):
    header, says = HEADERS[case]
    content = npy(SIX, header.encode("utf-8", "surrogateescape").decode("latin-1"))
    path = archive(tmp_path / "a.npz", {"a.npy": content})
    if says is None:
        np.testing.assert_array_equal(arrays.load(path)["a"].ravel(), SIX)
    else:
        assert says in refusal(path)


def refusal(path: pathlib.Path) -> str:
    """The sentence with which `replay` refuses the file; every other reader refuses it too."""
    with pytest.raises(archives.ArchiveError) as caught:
        arrays.load(path)
    task = tasks.make("ProbeBudget")
    for read in (
        lambda: replay.load(path, task),
        lambda: score.load_inputs(path, None),
        lambda: prior._rows(path, task, 5),
    ):
        with pytest.raises(errors.UserError) as other:
            read()
        assert str(caught.value) in str(other.value) and str(other.value).endswith(".")
        assert "\n" not in str(other.value) and len(str(other.value)) < 300 + len(str(path))
    notes: list[str] = []
    shutil.move(path, path.with_name("evaluation.npz"))
    assert not report_read._evaluation(path.parent, notes.append).episodes
    shutil.move(path.with_name("evaluation.npz"), path)
    assert len(notes) == 1 and notes[0].startswith("evaluation.npz "), notes
    return str(caught.value)


def test_what_was_saved_comes_back(tmp_path):
    given = {
        "double": SIX, "none": np.zeros((0, 7)), "number": np.float32(3),
        "turned": np.asfortranarray(SIX.reshape(2, 3)),
        "names": np.asarray(["a", "bcd"]), "truth": SIX > 2, "big": SIX.astype(">f4"),
        "long": np.zeros(2, [(f"field{i}", "f4") for i in range(400)]),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **given)
        found = arrays.load(tmp_path / "a.npz")
        assert list(found) == list(given)
        for name, values in given.items():
            assert found[name].dtype == np.asarray(values).dtype
            np.testing.assert_array_equal(found[name], values)
    found["double"][0] = 9.0


def test_members_that_are_no_arrays(tmp_path):
    for content in (b"", b"text", npy(SIX)[:20], npy(SIX)[:-1], npy(SIX) + b"more"):
        assert "'a.npy'" in refusal(archive(tmp_path / "a.npz", {"a.npy": content}))
    assert "'notes.txt', which is no array" in refusal(archive(tmp_path / "a.npz", {"notes.txt": b"text"}))
    assert "is no array" in refusal(archive(tmp_path / "a.npz", {"x" * 30000: b""}))


def test_ways_to_pack_that_are_not_read(tmp_path):
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)}, zipfile.ZIP_LZMA)
    assert "packs 'a.npy' in a way that is not known here" in refusal(path)
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)})
    patch(path, 8, 10, struct.pack("<H", 99))
    assert "packs 'a.npy' in a way that is not known here" in refusal(path)
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)})
    patch(path, 6, 8, struct.pack("<H", 1))
    assert "is encrypted" in refusal(path)
    # A name that says it is UTF-8 and is not; a part of a patch.
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)})
    patch(path, 6, 8, struct.pack("<H", 1 << 11))
    patch(path, 30, 46, b"\xff")
    assert "is damaged: UnicodeDecodeError in its directory" in refusal(path)
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)})
    patch(path, 6, 8, struct.pack("<H", 1 << 5))
    assert "is damaged: NotImplementedError in 'a.npy'" in refusal(path)
    # Made for a version of the format that there is not.
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)})
    patch(path, 4, 6, struct.pack("<H", 99))
    assert "is damaged: NotImplementedError in its directory" in refusal(path)


def test_small_files_that_unpack_to_much(tmp_path):
    member = npy(np.zeros(4 << 20))
    path = archive(tmp_path / "a.npz", {f"{i}.npy": member for i in range(9)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1e6
    tracemalloc.start()
    try:
        assert "unpacks to 3019910" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 1e7
    finally:
        tracemalloc.stop()


def test_a_member_that_declares_more_than_it_has(tmp_path):
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)})
    patch(path, 22, 24, struct.pack("<I", 10**9))
    assert "'a.npy' declares 1000000000 bytes and has fewer" in refusal(path)
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)})
    patch(path, 22, 24, struct.pack("<I", 10**4))
    assert "is damaged" in refusal(path)


def test_directories_without_end(tmp_path):
    many = archive(tmp_path / "a.npz", {f"{i:0100}": b"" for i in range(8000)})
    assert "has a directory of 1168000 bytes; at most 1048576 are read" in refusal(many)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(tmp_path / "b.npz", "w") as file:
        for _ in range(2):
            file.writestr("a.npy", npy(SIX))
    assert "two members have one name" in refusal(tmp_path / "b.npz")


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    assert "is not a file" in refusal(tmp_path / "a.npz")
    (tmp_path / "loop.npz").symlink_to(tmp_path / "loop.npz")
    with pytest.raises(archives.ArchiveError, match="cannot be read"):
        arrays.load(tmp_path / "loop.npz")


def test_labels_of_a_store_that_are_one_number(tmp_path):
    np.savez(tmp_path / "store.npz", length=3)
    with pytest.raises(errors.UserError, match=r"store.npz is damaged: inputs must be"):
        prior._rows(tmp_path / "store.npz", tasks.make("ProbeBudget"), 5)
