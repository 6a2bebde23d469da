"""Files of arrays that were made to break their reader, or broke on the way: one sentence, no more work."""

import io
import os
import pathlib
import shutil
import struct
import tracemalloc
import zipfile
import zlib

import h5py
import numpy as np
import pytest
import test_pretrain as recordings

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
    "too large a shape": (described(f"({10**15},)"), "not have the size that it declares"),
    "too large for a computer": (described(f"({2**62}, {2**62})"), "not have the size that it declares"),
    "too large and empty": (described(f"(0, {2**62}, {2**62})"), "not have the size that it declares"),
    "too small a shape": (described("(5,)"), "not have the size that it declares"),
    "negative": (described("(-1, -6)"), "not have the size that it declares"),
    "many dimensions": (described(str((1,) * 200 + (6,))), "not have the size that it declares"),
    "a part of what is there": (described("(3,)", "'(2,)<f8'"), None),
    "nothing, many times": (described(str((10**15,)), "'<U0'"), "not have the size that it declares"),
    "objects": (described("(6,)", "'|O'"), "an array of Python objects"),
    "half a header": (described("(6,)")[:-9] + "'''", "is not an array"),
    "open brackets": ("(" * 5000, "is not an array"),
    "no type": (described("(6,)", "'<f9'"), "is not an array"),
    "odd type": (described("(6,)", "[[[]]]"), "is not an array"),
    "no text": ("\udc80", "is not an array"),
    "long": (described("(6,)") + " " * 60000, "is not an array"),
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
        lambda: score.load_inputs(path, 2),
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
    assert "'notes.txt', which is not an array" in refusal(archive(tmp_path / "a.npz", {"notes.txt": b"text"}))
    assert "is not an array" in refusal(archive(tmp_path / "a.npz", {"x" * 30000: b""}))


def test_ways_to_pack_that_are_not_read(tmp_path):
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)}, zipfile.ZIP_LZMA)
    assert "packs 'a.npy' with an unknown compression" in refusal(path)
    path = archive(tmp_path / "a.npz", {"a.npy": npy(SIX)})
    patch(path, 8, 10, struct.pack("<H", 99))
    assert "packs 'a.npy' with an unknown compression" in refusal(path)
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


# --- HDF5 ----------------------------------------------------------------------------------------------------------


def in_other_file(file: h5py.File, how: str) -> None:
    """Costs that lie in another file, which is there and could be read."""
    folder, costs = pathlib.Path(file.filename).parent, np.zeros(80, np.float32)
    (folder / "costs.bin").write_bytes(costs.tobytes())
    recordings.write(folder / "other.hdf5", {"costs": costs})
    if how == "link":
        file["costs"] = h5py.ExternalLink("other.hdf5", "/costs")
    elif how == "storage":
        file.create_dataset("costs", (80,), np.float32, external=[(str(folder / "costs.bin"), 0, costs.nbytes)])
    else:
        layout = h5py.VirtualLayout((80,), np.float32)
        layout[:] = h5py.VirtualSource(folder / "other.hdf5", "costs", (80,))
        file.create_virtual_dataset("costs", layout)


def put(name: str, value):
    """Whatever h5py makes of a value."""

    def make(file: h5py.File) -> None:
        file[name] = value

    return make


def declare(*names: str, **options):
    """Arrays of 1e12 steps of which nobody has written any."""

    def make(file: h5py.File) -> None:
        for name in names:
            width = (1,) if name in ("observations", "actions") else ()
            chunks = {"chunks": (1000, *width)} if options else {}
            file.create_dataset(name, (10**12, *width), np.float32, **options | chunks)

    return make


def packed_twice(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((80,))
    properties.set_deflate(9)
    properties.set_deflate(9)
    h5py.h5d.create(file.id, b"costs", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((80,)), properties)


def packed_too_well(file: h5py.File) -> None:
    """A chunk of 320 bytes that unpacks to 200 MB."""
    packer = zlib.compressobj(9)
    content = b"".join([packer.compress(bytes(1 << 20)) for _ in range(200)] + [packer.flush()])
    costs = file.create_dataset("costs", (80,), np.float32, chunks=(80,), compression="gzip")
    costs.id.write_direct_chunk((0,), content)


EVERYTHING = ("observations", "actions", "costs", "terminals", "timeouts")
NOT_HERE = "costs is a link to another place; the array itself must be there."
ELSEWHERE = "costs has its numbers in other files; they must be in this one."
NO_ARRAY = "has no array 'costs'; it must hold"
NO_NUMBERS = "; it must hold real numbers."
PACKED = "costs has an unknown compression; gzip or none would be right."
RECORDINGS = {
    "external link": (lambda file: in_other_file(file, "link"), NOT_HERE),
    "external storage": (lambda file: in_other_file(file, "storage"), ELSEWHERE),
    "virtual": (lambda file: in_other_file(file, "virtual"), ELSEWHERE),
    "soft link": (put("costs", h5py.SoftLink("/actions")), NOT_HERE),
    "dangling link": (put("costs", h5py.SoftLink("/nowhere")), NOT_HERE),
    "looping link": (put("costs", h5py.SoftLink("/costs")), NOT_HERE),
    "group": (lambda file: file.create_group("costs"), NO_ARRAY),
    "its own group": (lambda file: put("costs", file["/"])(file), NO_ARRAY),
    "type": (put("costs", np.dtype(np.float32)), NO_ARRAY),
    "null": (put("costs", h5py.Empty(np.float32)), "costs is empty; it must hold real numbers."),
    "one number": (put("costs", 3.0), "costs has shape []; it must be [80] for ProbeBudget."),
    "compound": (put("costs", np.zeros(80, [("a", "f4"), ("b", "f4")])), NO_NUMBERS),
    "parts": (lambda file: file.create_dataset("costs", (80,), np.dtype(("f4", (2,)))), NO_NUMBERS),
    "text": (put("costs", ["free"] * 80), "costs holds object" + NO_NUMBERS),
    "lists": (lambda file: file.create_dataset("costs", (80,), h5py.vlen_dtype(np.float32)), NO_NUMBERS),
    "references": (lambda file: file.create_dataset("costs", (80,), h5py.ref_dtype), NO_NUMBERS),
    "complex": (put("costs", np.zeros(80, complex)), "costs holds complex128" + NO_NUMBERS),
    "nothing written": (lambda file: file.create_dataset("costs", (80,), np.float32), "declares 80 steps that are not"),
    "large": (declare(*EVERYTHING), "observations declares 1000000000000 steps that are not all in the file."),
    "large, in chunks": (declare(*EVERYTHING, chunks=True), "observations declares 1000000000000 steps that are not"),
    "large, packed": (declare(*EVERYTHING, compression="gzip"), "observations declares 1000000000000 steps that are"),
    "large chunks": (
        lambda file: file.create_dataset("costs", (80,), np.float32, chunks=(1 << 26,), maxshape=(None,)),
        "costs has chunks of 268435456 bytes; at most 134217728 would be right.",
    ),
    "unknown packing": (lambda file: file.create_dataset("costs", data=np.zeros(80), compression="lzf"), PACKED),
    "scaled": (lambda file: file.create_dataset("costs", data=np.zeros(80, int), scaleoffset=0), PACKED),
    "packed twice": (packed_twice, PACKED),
    "packed too well": (packed_too_well, "costs is damaged: a chunk unpacks to more than its 320 bytes."),
    "3e38": (
        put("observations", np.full((80, 1), 3e38)),
        "observations[0, 0] is 3e+38; all numbers must be finite and at most 1e+12.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RECORDINGS)
def test_recordings(case, tmp_path):
    change, says = RECORDINGS[case]
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        change(file)
        for name, values in recordings.record(episodes=8).items():
            if name not in list(file):
                file[name] = values
    with pytest.raises(errors.UserError) as caught, recordings.opened(path, recordings.config_of()):
        pass
    sentence = str(caught.value)
    assert says in sentence and sentence.endswith(".") and "\n" not in sentence and len(sentence) < 300 + len(str(path))


def test_recordings_whose_description_is_damaged(tmp_path):
    """What is in the first kilobyte says where everything is. `make fuzz` changes all bytes."""
    good = recordings.write(tmp_path / "a.hdf5", recordings.record(episodes=8), chunks=True, compression="gzip")
    content = good.read_bytes()
    refused = 0
    for place in range(0, 1000, 10):
        changed = bytearray(content)
        changed[place] ^= 0xA5
        good.write_bytes(changed)
        try:
            with recordings.opened(good, recordings.config_of()) as recording:
                recording.rows(np.arange(recording.count))
        except errors.UserError as error:
            assert "\n" not in str(error) and str(error).endswith(".")
            refused += 1
    assert refused > 10


def test_a_packed_recording_with_large_chunks_is_read(tmp_path):
    """Only what unpacks to more than it should is refused, not what is large."""
    arrays = recordings.record(episodes=5_000)
    options = {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}
    path = recordings.write(tmp_path / "a.hdf5", arrays, **options)
    with h5py.File(path, "a") as file:
        del file["observations"]
        file.create_dataset("observations", data=arrays["observations"], **options | {"chunks": (50_000, 1)})
        assert file["observations"].id.get_chunk_info(0).size > 150_000
    with recordings.opened(path, recordings.config_of()) as recording:
        assert recording.count == 5_000
