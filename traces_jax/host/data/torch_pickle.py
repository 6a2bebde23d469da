"""Reads the pickle of a PyTorch file, which describes tensors, without executing it.

A pickle is a program that can call any function of any library, and Python's unpickler executes it. This reader
supports only the few instructions that PyTorch uses for a state dict. Tensors become descriptions, only a few names are
known, keys must be text, and anything else is refused. The cost of each instruction is bounded by its length, so the
total cost is bounded by the size of the pickle.
"""

import math
import pickletools
from typing import NamedTuple, TypeGuard, TypeVar

from traces_jax.host.data import archives

_DTYPES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "b1",
}
_NAMES = (
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    *(f"torch.{name}" for name in _DTYPES),
)
# More dimensions than any weight has, and more entries than any storage.
_MOST_DIMENSIONS, _MOST_ENTRIES = 8, 1 << 48

Kind = TypeVar("Kind")


class PickleError(Exception):
    """What is wrong with a pickle, phrased to follow the name of its file in a sentence."""


class Storage(NamedTuple):
    """`size` numbers of a type, in the member `key` of the archive."""

    dtype: str
    key: str
    size: int


class Tensor(NamedTuple):
    """Some entries of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """A reference to a function or a class."""

    full: str


def load(content: bytes) -> object:
    """The content of a pickle: text, numbers, tuples, lists, dictionaries and tensors."""
    machine = _Machine()
    try:
        for instruction, argument, _ in pickletools.genops(content):
            if instruction.name == "STOP":
                return machine.stack.pop()
            machine.run(instruction.name, argument)
    # Unknown or truncated instructions, and missing entries of the stack or the memo.
    except (ValueError, LookupError, AttributeError, OverflowError) as error:
        raise PickleError(f"is damaged: {type(error).__name__} in its description") from None
    raise PickleError("is damaged: its description has no end")


def show(value: object) -> str:
    """A value for an error message: text and small numbers as they are, otherwise the type."""
    if isinstance(value, str):
        return archives.short(value)
    return str(value) if isinstance(value, int) and abs(value) < 1 << 64 else f"a {type(value).__name__}"


class _Machine:
    """The pickle machine: stack and memo."""

    def __init__(self) -> None:
        self.stack: list = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def run(self, name: str, argument) -> None:
        """Executes one instruction."""
        stack = self.stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[name]())
            case "MARK":
                self._marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._last(int(name[-1]))))
            case "APPEND" | "APPENDS":
                values = self._last(1) if name == "APPEND" else self._since_mark()
                _expect(stack[-1], list).extend(values)
            case "SETITEM" | "SETITEMS":
                values = self._last(2) if name == "SETITEM" else self._since_mark()
                _put(_expect(stack[-1], dict), values)
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(_name(argument.replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                module, last = self._last(2)
                stack.append(_name(f"{_expect(module, str)}.{_expect(last, str)}"))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                function, arguments = self._last(2)
                stack.append(_call(function, arguments))
            case "BUILD":
                # Attributes that PyTorch sets on the dictionary; not needed.
                stack.pop()
                _expect(stack[-1], dict)
            case _:
                raise PickleError(f"is refused: it has an instruction {name}")

    def _last(self, count: int) -> list:
        """Pops the last `count` entries off the stack."""
        if len(self.stack) < count:
            raise IndexError
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _since_mark(self) -> list:
        """Pops all entries since the last mark."""
        mark = self._marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values


def _expect(value: object, kind: type[Kind]) -> Kind:
    if not isinstance(value, kind):
        raise PickleError(f"is damaged: its description has {show(value)} where a {kind.__name__} must be")
    return value


def _put(target: dict, values: list) -> None:
    """values: alternating keys and values. Keys must be text: others may be large, or slow to hash on purpose."""
    for key, value in zip(values[::2], values[1::2], strict=True):
        if not isinstance(key, str):
            raise PickleError(f"is not a state dict: it has an entry named {show(key)}, not by text")
        target[key] = value


def _name(full: str) -> _Name:
    if full not in _NAMES:
        raise PickleError(f"is refused: it names {archives.short(full)}")
    return _Name(full)


def _storage(identity: object) -> Storage:
    """The storage that a persistent id refers to."""
    match identity:
        case ("storage", _Name(full=full), str() as key, str(), int() as size):
            dtype = _DTYPES.get(full.removeprefix("torch."))
            if dtype and _is_size(size):
                return Storage(dtype, key, size)
    raise PickleError("is refused: it refers to something that is not the storage of a tensor")


def _call(function: object, arguments: object) -> object:
    match function, arguments:
        case _Name(full="collections.OrderedDict"), ():
            return {}
        # After these come requires_grad, hooks and, in newer files, metadata.
        case _Name(full="torch._utils._rebuild_tensor_v2"), (storage, offset, shape, strides, _, _, *rest) if (
            len(rest) < 2
        ):
            return _tensor(storage, offset, shape, strides)
    raise PickleError("is refused: it calls something that does not describe a tensor")


def _tensor(storage: object, offset: object, shape: object, strides: object) -> Tensor:
    if not isinstance(storage, Storage):
        raise PickleError("is damaged: a tensor has no storage")
    if not (_is_size(offset) and _are_sizes(shape) and _are_sizes(strides) and len(shape) == len(strides)):
        raise PickleError("is damaged: a tensor has no proper offset, shape and strides")
    return Tensor(storage, offset, shape, strides)


def _is_size(number: object) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < _MOST_ENTRIES


def _are_sizes(numbers: object) -> TypeGuard[tuple[int, ...]]:
    if not isinstance(numbers, tuple) or len(numbers) > _MOST_DIMENSIONS or not all(map(_is_size, numbers)):
        return False
    # NumPy computes sizes this way, even for shapes with zero entries.
    return math.prod(number or 1 for number in numbers) < _MOST_ENTRIES
