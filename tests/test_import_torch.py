"""Files of PyTorch read without PyTorch: what is in them, what is refused, and that a refused file has done nothing."""

import collections
import contextlib
import io
import os
import pathlib
import pickle
import sys
import tracemalloc
import types
import zipfile
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from traces_jax import sources
from traces_jax.estimator import credit, network
from traces_jax.host.data import import_torch

# The authors' estimators and what they say to fixed inputs: not ours to publish, so they lie beside the repository.
SHARED = pathlib.Path(os.environ.get("TRACES_JAX_SHARED", pathlib.Path(__file__).parents[2] / "shared"))
RELEASED = sorted((SHARED / "goldens" / "released_estimators").glob("*.npz"))
AUTHORS = sorted((SHARED / "estimators").glob("*.pt"))
KINDS = {
    "f8": "DoubleStorage", "f4": "FloatStorage", "f2": "HalfStorage", "i8": "LongStorage", "i4": "IntStorage",
    "i2": "ShortStorage", "i1": "CharStorage", "u1": "ByteStorage", "b1": "BoolStorage",
}  # fmt: skip


class Storage:
    """Numbers and their name in the file. refer: parts of the reference to it that shall be wrong."""

    def __init__(self, key, numbers, /, **refer):
        self.key, self.numbers, self.refer = key, np.asarray(numbers), refer


class Tensor:
    def __init__(self, storage, offset, shape, strides, hooks=None):
        self.arguments = (storage, offset, shape, strides, False, collections.OrderedDict() if hooks is None else hooks)

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.arguments


def whole(key, array):
    """A tensor with a storage of its own."""
    array = np.ascontiguousarray(array)
    return Tensor(Storage(key, array), 0, array.shape, tuple(step // array.itemsize for step in array.strides))


@contextlib.contextmanager
def torch_names():
    """PyTorch's names, for as long as a file is written."""

    def _rebuild_tensor_v2():
        raise AssertionError

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    vars(torch).update({kind: type(kind, (), {"__module__": "torch"}) for kind in KINDS.values()})
    vars(utils).update(_rebuild_tensor_v2=_rebuild_tensor_v2)
    with mock.patch.dict(sys.modules, {"torch": torch, "torch._utils": utils}):
        yield


class Pickler(pickle.Pickler):
    """Storages stay outside the pickle; `storages` collects them."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.storages = {}

    def persistent_id(self, thing):
        if not isinstance(thing, Storage):
            return None
        self.storages[thing.key] = thing.numbers
        kind = getattr(sys.modules["torch"], KINDS[thing.numbers.dtype.str[1:]])
        parts = {"tag": "storage", "kind": kind, "key": thing.key, "place": "cuda:0", "size": thing.numbers.size}
        return tuple((parts | thing.refer).values())


def dump(contents, protocol=2):
    """The pickle and the storages it refers to."""
    file = io.BytesIO()
    with torch_names():
        pickler = Pickler(file, protocol=protocol)
        pickler.dump(contents)
    return file.getvalue(), pickler.storages


def write(path, content, storages=None, *, byteorder=b"little", folder="archive"):
    """A file as torch.save lays it out."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", content)
        if byteorder is not None:
            archive.writestr(f"{folder}/byteorder", byteorder)
        for key, numbers in (storages or {}).items():
            archive.writestr(f"{folder}/data/{key}", numbers if isinstance(numbers, bytes) else numbers.tobytes())
        archive.writestr(f"{folder}/version", b"3\n")
    return path


def save(path, contents, **options):
    return write(path, *dump(contents), **options)


def save_arrays(path, arrays):
    """A state dict with the attribute that PyTorch hangs on it."""
    contents = collections.OrderedDict(
        (name, whole(str(index), array)) for index, (name, array) in enumerate(arrays.items())
    )
    contents._metadata = collections.OrderedDict({"": {"version": 1}})
    return save(path, contents)


def estimator_arrays(features=3, hidden=2, layers=2, decoder=(5, 4)):
    random = np.random.default_rng(0)
    shapes = {}
    for layer in range(layers):
        shapes[f"gru.weight_ih_l{layer}"] = (3 * hidden, hidden if layer else features)
        shapes[f"gru.weight_hh_l{layer}"] = (3 * hidden, hidden)
        shapes[f"gru.bias_ih_l{layer}"] = shapes[f"gru.bias_hh_l{layer}"] = (3 * hidden,)
    inputs = 2 * hidden
    for index, width in enumerate(decoder):
        shapes[f"decoder.{2 * index}.weight"], shapes[f"decoder.{2 * index}.bias"] = (width, inputs), (width,)
        inputs = width
    for head in ("decoder_output", "decoder_output_logstd"):
        shapes[f"{head}.weight"], shapes[f"{head}.bias"] = (1, inputs), (1,)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def refusal(path):
    """The sentence with which a file is refused."""
    with pytest.raises(import_torch.TorchFileError) as caught:
        import_torch.estimator(path)
    sentence = str(caught.value)
    assert sentence.startswith(str(path)) and sentence.endswith(".") and "\n" not in sentence
    return sentence


# What is in a file.


def test_state_dicts_come_back(tmp_path):
    arrays = estimator_arrays()
    found = import_torch.state_dict(save_arrays(tmp_path / "a.pt", arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array)
    assert "torch" not in sys.modules


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_numbers(kind, tmp_path):
    array = np.arange(6).reshape(2, 3).astype(kind)
    (found,) = import_torch.state_dict(save(tmp_path / "a.pt", {"a": whole("0", array)})).values()
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_tensors_are_views_of_storages(tmp_path):
    """Two tensors in one storage, as cuDNN lays out a GRU's weights; one of them transposed, one a column."""
    storage = Storage("0", np.arange(20, dtype=np.float32))
    contents = {
        "matrix": Tensor(storage, 2, (3, 4), (4, 1)),
        "turned": Tensor(storage, 2, (4, 3), (1, 4)),
        "column": Tensor(storage, 3, (5,), (4,)),
        "number": Tensor(storage, 19, (), ()),
        "empty": Tensor(storage, 20, (0, 7), (7, 1)),
    }
    found = import_torch.state_dict(save(tmp_path / "a.pt", contents))
    np.testing.assert_array_equal(found["matrix"], np.arange(2, 14).reshape(3, 4))
    np.testing.assert_array_equal(found["turned"], np.arange(2, 14).reshape(3, 4).T)
    np.testing.assert_array_equal(found["column"], [3, 7, 11, 15, 19])
    assert found["number"] == 19 and found["number"].shape == ()
    assert found["empty"].shape == (0, 7)
    assert np.shares_memory(found["matrix"], found["column"]), "a storage must be there once"
    with pytest.raises(ValueError, match="read-only"):
        found["matrix"][:] = 0


def test_byte_orders(tmp_path):
    numbers = np.asarray([1.5, -2.0], np.float32)
    content, _ = dump({"a": whole("0", numbers)})
    for byteorder, stored in ((b"big", ">f4"), (b"little", "<f4"), (None, "<f4")):
        path = write(tmp_path / "a.pt", content, {"0": numbers.astype(stored)}, byteorder=byteorder)
        (found,) = import_torch.state_dict(path).values()
        assert found.dtype.isnative
        np.testing.assert_array_equal(found, numbers)
    assert "damaged" in refusal(write(tmp_path / "a.pt", content, {"0": numbers}, byteorder=b"middle"))


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"layers": 1, "decoder": (7,)},
        {"layers": 12, "hidden": 1, "features": 1, "decoder": (2, 3, 4)},
    ],
)
def test_estimators_of_any_size(sizes, tmp_path):
    arrays = estimator_arrays(**sizes)
    estimator = import_torch.estimator(save_arrays(tmp_path / "a.pt", arrays))
    for index, layer in enumerate(estimator.layers):
        np.testing.assert_array_equal(layer.input_kernel, arrays[f"gru.weight_ih_l{index}"].T)
        np.testing.assert_array_equal(layer.hidden_kernel, arrays[f"gru.weight_hh_l{index}"].T)
        np.testing.assert_array_equal(layer.input_bias, arrays[f"gru.bias_ih_l{index}"])
        np.testing.assert_array_equal(layer.hidden_bias, arrays[f"gru.bias_hh_l{index}"])
    for index, dense in enumerate(estimator.decoder):
        np.testing.assert_array_equal(dense.kernel, arrays[f"decoder.{2 * index}.weight"].T)
        np.testing.assert_array_equal(dense.bias, arrays[f"decoder.{2 * index}.bias"])
    np.testing.assert_array_equal(estimator.mean_head.bias, arrays["decoder_output.bias"])
    np.testing.assert_array_equal(estimator.log_std_head.kernel, arrays["decoder_output_logstd.weight"].T)
    assert 4 * len(estimator.layers) + 2 * len(estimator.decoder) + 4 == len(arrays)


# The authors' files.


@pytest.mark.skipif(not RELEASED, reason="the authors' estimators are not beside the repository")
@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_the_authors_estimators_say_what_they_said(path):
    estimator = import_torch.estimator(SHARED / "estimators" / f"{path.stem}_DistributionGRU_4_2_128.pt")
    with np.load(path) as file:
        expected = {name: np.swapaxes(values, 0, 1) for name, values in file.items()}
    hidden, mu, sigma = jax.jit(network.apply)(estimator, jnp.asarray(expected["inputs"]))
    # Summaries cross zero; they are of order one.
    np.testing.assert_allclose(hidden, expected["hidden"], rtol=0, atol=1e-4 * np.abs(expected["hidden"]).max())
    np.testing.assert_allclose(mu, expected["mu"], rtol=1e-4)
    np.testing.assert_allclose(sigma, expected["sigma"], rtol=1e-4)
    # Theirs are the moments without a clamp.
    np.testing.assert_allclose(credit.lognormal_mean(mu, sigma), expected["mean"], rtol=1e-4)
    np.testing.assert_allclose(credit.lognormal_variance(mu, sigma), expected["variance"], rtol=1e-4)


@pytest.mark.skipif(not AUTHORS, reason="the authors' estimators are not beside the repository")
def test_all_of_the_authors_files_are_told_apart():
    kinds = collections.Counter()
    for path in AUTHORS:
        if "DistributionGRU" in path.stem:
            assert import_torch.estimator(path).layers[0].hidden_kernel.shape == (4, 12)
            kinds["estimator"] += 1
        else:
            found = import_torch.load(path)
            settings = {"method.source": "ct", "ct.hidden": (64, 64), "ct.normalize_inputs": False}
            assert sources.published(found.params) == settings
            assert found.params.network["params"]["Dense_0"]["kernel"].shape == (found.features, 64)
            assert "holds no TraCeS estimator: 'gru.weight_ih_l0' is missing." in refusal(path)
            kinds["cost threshold"] += 1
    assert min(kinds["estimator"], kinds["cost threshold"]) > 0


# What is not a file of PyTorch, not whole, or not an estimator.


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is not a complete zip archive"),
        (b"gru", "is not a complete zip archive"),
        # How PyTorch saved before 1.6: pickles one after the other, the first one a magic number.
        (pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2), "saved by PyTorch 1.6 or later"),
    ],
)
def test_no_archive(content, says, tmp_path):
    path = tmp_path / "a.pt"
    if content is not None:
        path.write_bytes(content)
    assert says in refusal(path)


def test_a_folder(tmp_path):
    assert "is not a file" in refusal(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.pt")
    assert "is not a file" in refusal(tmp_path / "a.pt")


def test_archives_without_or_with_too_many_pickles(tmp_path):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/weights", b"")
    assert "must hold one data.pkl, not 0" in refusal(path)
    save(path, {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", b"")
    assert "must hold one data.pkl, not 2" in refusal(path)


def test_files_cut_short_or_changed(tmp_path):
    path = save_arrays(tmp_path / "a.pt", estimator_arrays())
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    assert "is not a complete zip archive" in refusal(path)
    # One number of one weight: the archive's check sums see it.
    weight = estimator_arrays()["gru.weight_hh_l0"].tobytes()
    path.write_bytes(good.replace(weight, b"\0" + weight[1:]))
    assert "damaged: BadZipFile" in refusal(path)


RIGHT = "; it must be a state dict saved by PyTorch 1.6 or later."
NUMBERS = np.arange(6, dtype=np.float32)
DAMAGE = {
    "offset": (Tensor(Storage("0", NUMBERS), 1, (6,), (1,)), "lies outside its storage"),
    "negative offset": (Tensor(Storage("0", NUMBERS), -1, (6,), (1,)), "no proper offset"),
    "stride": (Tensor(Storage("0", NUMBERS), 0, (2, 3), (4, 1)), "lies outside its storage"),
    "negative stride": (Tensor(Storage("0", NUMBERS), 5, (6,), (-1,)), "no proper offset"),
    "shape": (Tensor(Storage("0", NUMBERS), 0, (7,), (1,)), "lies outside its storage"),
    "negative shape": (Tensor(Storage("0", NUMBERS), 0, (-1, -6), (6, 1)), "no proper offset"),
    "more entries than numbers": (
        Tensor(Storage("0", NUMBERS), 0, (10**12,), (0,)),
        "describes 1000000000000 numbers",
    ),
    "huge stride": (Tensor(Storage("0", NUMBERS), 0, (1,), (2**70,)), "no proper offset"),
    "rank": (Tensor(Storage("0", NUMBERS), 0, (2, 3), (1,)), "no proper offset"),
    "list": (Tensor(Storage("0", NUMBERS), 0, [6], [1]), "no proper offset"),
    "truth value": (Tensor(Storage("0", NUMBERS), False, (6,), (1,)), "no proper offset"),
    "text": (Tensor(Storage("0", NUMBERS), 0, ("6",), (1,)), "no proper offset"),
    "no storage": (Tensor("0", 0, (6,), (1,)), "a tensor has no storage"),
    "reference too large": (Tensor(Storage("0", NUMBERS, size=7), 0, (6,), (1,)), "has 24 bytes for 7 numbers of 4"),
    "reference too small": (Tensor(Storage("0", NUMBERS, size=5), 0, (5,), (1,)), "has 24 bytes for 5 numbers of 4"),
    "other reference": (Tensor(Storage("0", NUMBERS, tag="module"), 0, (6,), (1,)), "not the storage of a tensor"),
    "unknown kind": (Tensor(Storage("0", NUMBERS, kind="f16"), 0, (6,), (1,)), "not the storage of a tensor"),
    "missing storage": (Tensor(Storage("0", NUMBERS, key="1"), 0, (6,), (1,)), "it has no storage '"),
    "outside the archive": (Tensor(Storage("0", NUMBERS, key="../data.pkl"), 0, (6,), (1,)), "it has no storage '"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_tensors_that_do_not_fit_their_storage(case, tmp_path):
    tensor, says = DAMAGE[case]
    assert says in refusal(save(tmp_path / "a.pt", {"a": tensor}))


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ([1, 2], "holds an object of type 'list'"),
        ({"step": 3}, "entry 'step' is not a tensor"),
        ({"model": {"a": whole("0", NUMBERS)}}, "entry 'model' is not a tensor"),
        ({3: whole("0", NUMBERS)}, "an entry named 3, not by text"),
        ({}, "'gru.weight_ih_l0' is missing"),
    ],
)
def test_what_is_not_a_state_dict_of_tensors(contents, says, tmp_path):
    assert says in refusal(save(tmp_path / "a.pt", contents))


def test_estimators_that_are_not_whole(tmp_path):
    good = estimator_arrays()
    for name in good:
        rest = {other: array for other, array in good.items() if other != name}
        # Layers are counted by these: without them, what comes after has no place or does not fit.
        says = {
            "gru.weight_ih_l1": "it has no place for 'gru.weight_hh_l1'",
            "decoder.2.weight": "decoder_output.weight has shape [1, 4]; it must be [1, 5]",
        }.get(name, f"holds no TraCeS estimator: {name!r} is missing")
        assert says in refusal(save_arrays(tmp_path / "a.pt", rest))
        grown = good | {name: np.zeros((good[name].shape[0] + 1, *good[name].shape[1:]), np.float32)}
        assert "it must be [" in refusal(save_arrays(tmp_path / "a.pt", grown))
        flat = good | {name: good[name][None]}
        assert "dimensions; it must have" in refusal(save_arrays(tmp_path / "a.pt", flat))
    more = good | {"decoder.9.weight": np.zeros((1, 1), np.float32)}
    assert "it has no place for 'decoder.9.weight'" in refusal(save_arrays(tmp_path / "a.pt", more))
    for wrong in (np.nan, np.inf, 1e60):
        bad = good | {"decoder.2.bias": np.full(4, wrong)}
        assert "decoder.2.bias holds numbers that are not finite" in refusal(save_arrays(tmp_path / "a.pt", bad))


# Pickles that want more than tensors.


class Call:
    """Unpickled by anyone who trusts it, this calls the function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def attacks(marker):
    return {
        "posix.mkdir": Call(os.mkdir, str(marker)),
        "posix.system": Call(os.system, f"mkdir '{marker}'"),
        "builtins.eval": Call(eval, f"__import__('os').mkdir({str(marker)!r})"),
        "builtins.exec": Call(exec, f"import os; os.mkdir({str(marker)!r})"),
        "pathlib.Path.mkdir": Call(pathlib.Path.mkdir, marker),
    }


HIDING_PLACES = {
    "the whole": lambda attack: attack,
    "a value": lambda attack: collections.OrderedDict(a=whole("0", NUMBERS), b=attack),
    "a value of a value": lambda attack: {"a": collections.OrderedDict(b=[(attack,)])},
    "a key": lambda attack: {(attack,): whole("0", NUMBERS)},
    "hooks": lambda attack: {"a": Tensor(Storage("0", NUMBERS), 0, (6,), (1,), hooks=attack)},
    "a shape": lambda attack: {"a": Tensor(Storage("0", NUMBERS), 0, attack, (1,))},
    "a reference": lambda attack: {"a": Tensor(Storage("0", NUMBERS, place=attack), 0, (6,), (1,))},
}


@pytest.mark.parametrize("name", attacks(pathlib.Path("x")))
def test_the_attacks_are_real(name, tmp_path):
    """Python's own reader runs them; without that, the next test would show nothing."""
    attack = attacks(tmp_path / "ran")[name]
    pickle.loads(pickle.dumps({"a": attack}))
    assert (tmp_path / "ran").is_dir()


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("place", HIDING_PLACES)
@pytest.mark.parametrize("name", attacks(pathlib.Path("x")))
def test_attacks_are_refused_and_did_nothing(name, place, protocol, tmp_path):
    content, storages = dump(HIDING_PLACES[place](attacks(tmp_path / "ran")[name]), protocol)
    sentence = refusal(write(tmp_path / "a.pt", content, storages))
    assert "is refused: it names '" in sentence and sentence.endswith(RIGHT)
    assert [left.name for left in tmp_path.iterdir()] == ["a.pt"]


RAW = {
    # Other ways to name and call a function than those that Python's writer uses.
    "instance": (b"(X\x03\0\0\0ranios\nmkdir\n.", "an instruction INST"),
    "object": (b"(cos\nmkdir\nS'ran'\no.", "'os.mkdir'"),
    "path of names": (b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.", "OrderedDict.fromkeys'"),
    "module of a module": (b"\x80\x04\x8c\x05torch\x8c\x0f_utils.os.mkdir\x93.", "'torch._utils.os.mkdir'"),
    "line end in a name": (b"\x80\x04\x8c\x02os\x8c\x06mkdir\n\x93.", r"'os.mkdir\n'"),
    "other storage": (b"ctorch\nUntypedStorage\n.", "'torch.UntypedStorage'"),
    "named by a number": (b"\x80\x04\x8c\x02osK\x01\x93.", "1 where a str must be"),
    "other rebuilding": (b"ctorch._utils\n_rebuild_parameter\n.", "'torch._utils._rebuild_parameter'"),
    # A name that is allowed, but used for something else.
    "call of a storage": (b"ctorch\nFloatStorage\nK\x03\x85R.", "calls something that does not describe a tensor"),
    "call of text": (b"X\x03\0\0\0ran)R.", "calls something that does not describe a tensor"),
    "too few arguments": (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "calls something that does not describe a tensor"),
    "change of a class": (b"ccollections\nOrderedDict\n}X\x03\0\0\0popK\x01sb.", "a _Name where a dict must be"),
    # Room for four thousand million objects that are not there, which Python's reader would make.
    "numbering": (b"]r\xf0\xff\xff\xff.", "an object of type 'list'"),
    "no such number": (b"h\x07.", "damaged: KeyError"),
    "nothing there": (b"R.", "damaged: IndexError"),
    "no mark": (b"t.", "damaged: IndexError"),
    "a key without value": (b"}(X\x01\0\0\0au.", "damaged: ValueError"),
    "no end": (b"}", "damaged: ValueError"),
    "nothing at all": (b"", "damaged: ValueError"),
}  # fmt: skip


@pytest.mark.parametrize("case", RAW)
def test_pickles_made_by_hand(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, says = RAW[case]
    assert says in refusal(write(tmp_path / "a.pt", content))
    assert [left.name for left in tmp_path.iterdir()] == ["a.pt"]
    assert callable(collections.OrderedDict.pop)


def nested(depth):
    """Tuples in tuples, of which each holds the one before it twice: 2 ** depth in all."""
    return b")" + b"".join(b"q%ch%c\x86" % (place, place) for place in range(depth))


@pytest.mark.parametrize("depth", [25, 200])
def test_tuples_within_tuples(depth, tmp_path):
    """As a key, Python would count them all; written out, 25 make a hundred megabytes."""
    path = tmp_path / "a.pt"
    assert "an entry named a tuple, not by text" in refusal(write(path, b"}" + nested(depth) + b"Ns."))
    assert "entry 'a' is not a tensor" in refusal(write(path, b"}X\x01\0\0\0a" + nested(depth) + b"s."))
    assert "not the storage of a tensor" in refusal(write(path, nested(depth) + b"Q."))
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n"
    assert "a tensor has no storage" in refusal(write(path, rebuild + b"(" + nested(depth) + b"K\0))NNtR."))
    assert "an object of type 'tuple'" in refusal(write(path, nested(depth) + b"."))


LONG = "a" * 10**6


@pytest.mark.parametrize(
    "content",
    [
        lambda: dump({LONG[:-100]: 3}),
        lambda: dump({LONG[:-1000]: whole("0", NUMBERS)}),
        lambda: dump({"a": Tensor(Storage("0", NUMBERS, key=LONG[:-1000]), 0, (6,), (1,))}),
        lambda: (b"cos\n" + LONG[:-10].encode() + b"\n.", {}),
        lambda: dump({"a": Tensor(Storage("0", NUMBERS), 0, (1,) * 10**5, (1,) * 10**5)}),
        lambda: dump({1 << 10**6: 3}),
    ],
    ids=["entry", "place", "storage", "name", "shape", "number"],
)
def test_sentences_are_short(content, tmp_path):
    assert len(refusal(write(tmp_path / "a.pt", *content()))) < 300 + len(str(tmp_path))


def packed(path, content, storages):
    """As `write`, with all members packed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", content)
        for key, numbers in storages.items():
            archive.writestr(f"archive/data/{key}", numbers)
    return path


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"a": Tensor(Storage("0", NUMBERS), 0, (6,), (1,))}, "storage '0' has 300000000 bytes for 6 numbers of 4"),
        ({"a": whole("0", np.zeros(75_000_000, np.float32))}, "describes 75000000 numbers; at most 33554432 are read"),
        (
            {"a": Tensor(Storage("0", np.zeros(75_000_000, np.float32)), 0, (6,), (1,))},
            "unpacks to 300000000 bytes; at most 268435456 are read",
        ),
    ],
)
def test_small_files_that_unpack_to_much(contents, says, tmp_path):
    content, _ = dump(contents)
    path = packed(tmp_path / "a.pt", content, {"0": bytes(300_000_000)})
    tracemalloc.start()
    try:
        assert says in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 1e7
    finally:
        tracemalloc.stop()


def test_a_description_that_unpacks_to_much(tmp_path):
    path = packed(tmp_path / "a.pt", bytes(1 << 21), {})
    assert "unpacks to 2097152 bytes; at most 1048576 are read" in refusal(path)


def test_many_views_of_one_storage(tmp_path):
    """A thousand times the whole of it: more than may come out of a file, however small the file is."""
    storage = Storage("0", np.zeros(100_000, np.float32))
    few, many = ({str(i): Tensor(storage, 0, (100_000,), (1,)) for i in range(count)} for count in (300, 1000))
    tracemalloc.start()
    try:
        assert len(import_torch.state_dict(save(tmp_path / "a.pt", few))) == 300
        assert tracemalloc.get_traced_memory()[1] < 1e7
    finally:
        tracemalloc.stop()
    assert "describes 100000000 numbers; at most 33554432 are read" in refusal(save(tmp_path / "a.pt", many))


def test_random_damage_is_one_sentence(tmp_path):
    """Any byte of the description changed: either it still describes tensors, or it is refused as all else is."""
    content, storages = dump(
        collections.OrderedDict((name, whole(name, array)) for name, array in estimator_arrays().items())
    )
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        changed = bytearray(content)
        changed[random.integers(len(content))] = random.integers(256)
        path = write(tmp_path / "a.pt", bytes(changed), storages)
        try:
            import_torch.state_dict(path)
        except import_torch.TorchFileError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 50 < refused < 300
