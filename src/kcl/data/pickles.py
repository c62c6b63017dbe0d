"""Read the pickles that datasets are published as, without unpickling them.

A pickle is a program for a small virtual machine, and Python's runs any function the program names. This one knows
only what the files of CIFAR-100 and miniImageNet contain: text, numbers, lists, tuples, dictionaries, and numpy arrays,
for which it has its own builders; it cannot run anything else. All lengths are checked against the file before memory
is allocated, and large arrays stay in the file, mapped into memory.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kcl.errors import KclError

DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
MOST_DIMENSIONS = 8
NEWEST_PROTOCOL = 5


def read(path: Path) -> Any:
    """What a pickle holds. Python 2 text becomes str. Arrays may be changed; the file stays as it is."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return _Machine(memoryview(mapped)).run()
    except _Refused as error:
        raise KclError(f"{path} is not read: {error}") from None
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, struct.error) as error:
        # An empty file cannot be mapped; or the stack, the memo or a text is malformed.
        raise KclError(f"{path} is not a whole pickle ({type(error).__name__}: {error})") from None


class _Refused(Exception):
    """The pickle does something that is not allowed."""


class _Builder:
    """One of the few functions a pickle may call: ours, under numpy's name."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self.build = build


class _Type:
    """A numpy data type, as `dtype("u1")` and its byte order give it."""

    def __init__(self, code: Any, *_: Any) -> None:
        if _text(code) not in DTYPES:
            raise _Refused(f"it holds an array of type {_shown(code)}, which is none of {', '.join(DTYPES)}")
        self.numpy = np.dtype(f"<{_text(code)}")

    def finish(self, state: Any) -> _Type:
        if not isinstance(state, tuple) or len(state) < 5 or _text(state[1]) not in ("<", "|", "="):
            raise _Refused("it holds numbers in a byte order other than little-endian")
        if any(part is not None for part in state[2:5]):
            raise _Refused("it holds an array of structures")
        return self


class _Shell:
    """An array before its content arrives; `place` is its key in the memo."""

    place: int | None = None

    def __init__(self, *_: Any) -> None:
        pass

    def finish(self, state: Any) -> np.ndarray:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("it holds an array in an unknown form")
        _, shape, kind, by_column, raw = state
        return _array(raw, kind, shape, "F" if by_column else "C")


def _array(raw: Any, kind: Any, shape: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(kind, _Type) or not isinstance(shape, tuple) or len(shape) > MOST_DIMENSIONS:
        raise _Refused("it holds an array in an unknown form")
    if not all(isinstance(length, int) and length >= 0 for length in shape):
        raise _Refused(f"it claims an array of shape {_shown(shape)}")
    content = bytearray(raw, "latin1") if isinstance(raw, str) else raw
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise _Refused("it holds an array of objects")
    claimed = math.prod(shape) * kind.numpy.itemsize
    if claimed != len(content):
        raise _Refused(f"it claims an array of shape {_shown(shape)}, {claimed} bytes, and holds {len(content)} bytes")
    writable = bytearray(content) if isinstance(content, bytes) else content
    return np.frombuffer(writable, kind.numpy).reshape(shape, order="F" if _text(order) == "F" else "C")


def _scalar(kind: Any, raw: Any = b"") -> Any:
    return _array(raw, kind, ()).item()


def _encode(text: Any, encoding: Any = "") -> bytearray:
    """Python 3 writes bytes for Python 2 as Latin-1 text."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise _Refused("it encodes text in an unknown encoding")
    return bytearray(text, "latin1")


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin1")
    return value if isinstance(value, str) else ""


def _shown(value: Any) -> str:
    return repr(value)[:60]


BUILDERS = {
    "numpy.ndarray": _Builder(_Shell),
    "numpy.dtype": _Builder(_Type),
    "_codecs.encode": _Builder(_encode),
    **{f"numpy.{core}.multiarray._reconstruct": _Builder(_Shell) for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _Builder(_scalar) for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _Builder(_array) for core in ("core", "_core")},
}


class _Machine:
    """The pickle machine with the instructions for plain data, protocols 2 to 5."""

    def __init__(self, content: memoryview) -> None:
        self.content, self.position = content, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        content, size = self.content, len(self.content)
        if content[0] != PROTOCOL:
            raise _Refused("it does not begin like a pickle of protocols 2 to 5")
        while self.position < size:
            code = content[self.position]
            self.position += 1
            if code == STOP:
                return self.stack.pop()
            instruction = INSTRUCTIONS.get(code)
            if instruction is None:
                raise _Refused(f"the instruction {bytes([code])!r} is not needed for plain data")
            instruction(self)
        raise _Refused("it is truncated: the end is missing")

    def take(self, count: int) -> memoryview:
        """The next bytes of the file, without a copy."""
        if count < 0 or count > len(self.content) - self.position:
            left = len(self.content) - self.position
            raise _Refused(f"it is truncated: {count} bytes were expected and {left} are left")
        self.position += count
        return self.content[self.position - count : self.position]

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def line(self) -> str:
        """Text up to the end of a line: a module's or an attribute's name, so never long."""
        start = self.position
        end = bytes(self.content[start : start + 256]).find(b"\n")
        if end < 0:
            raise _Refused("it names something in more than 255 characters")
        return bytes(self.take(end + 1)[:-1]).decode()

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def keep(self, place: int) -> None:
        top = self.stack[-1]
        if isinstance(top, _Shell):
            top.place = place
        self.memo[place] = top

    def find(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise _Refused("it asks for something without naming it")
        path = f"{module}.{name}"
        if path not in BUILDERS:
            raise _Refused(f"it asks for {path[:100]!r}; no dataset needs that, so the file may be meant to do harm")
        self.stack.append(BUILDERS[path])

    def call(self) -> None:
        arguments, builder = self.stack.pop(), self.stack.pop()
        if not isinstance(builder, _Builder) or not isinstance(arguments, tuple):
            raise _Refused("it calls what cannot be called")
        self.stack.append(builder.build(*arguments))

    def finish(self) -> None:
        """Give an array or a type its content, and replace it in the memo too."""
        state, unfinished = self.stack.pop(), self.stack[-1]
        if not isinstance(unfinished, (_Shell, _Type)):
            raise _Refused("it changes an object that is no array")
        self.stack[-1] = unfinished.finish(state)
        if isinstance(unfinished, _Shell) and unfinished.place is not None:
            self.memo[unfinished.place] = self.stack[-1]

    def extend(self) -> None:
        items = self.since_mark()
        self._top(list).extend(items)

    def append(self) -> None:
        item = self.stack.pop()
        self._top(list).append(item)

    def update(self) -> None:
        items = self.since_mark()
        self._insert(zip(items[::2], items[1::2], strict=True))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._insert([(key, value)])

    def _insert(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Keys are text or numbers: hashing deeply nested tuples could crash the process."""
        target = self._top(dict)
        for key, value in pairs:
            if not isinstance(key, (str, int)):
                raise _Refused(f"it has a dictionary with a {type(key).__name__} for a key")
            target[key] = value

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise _Refused(f"it adds to what is no {kind.__name__}")
        return self.stack[-1]

    def group(self, count: int) -> None:
        if len(self.stack) < count:
            raise _Refused("it takes more from its stack than there is")
        items = self.stack[-count:]
        self.stack[-count:] = [tuple(items)]

    def protocol(self) -> None:
        if (number := self.number("<B")) > NEWEST_PROTOCOL:
            raise _Refused(f"it is written in pickle protocol {number}; save it again with protocol {NEWEST_PROTOCOL}")


def _push(value: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value(machine))


def _sized(form: str, made_of: Callable[[memoryview], Any]) -> Callable[[_Machine], None]:
    """Push something that is preceded by its length."""
    return _push(lambda machine: made_of(machine.take(machine.number(form))))


def _unicode(content: memoryview) -> str:
    return str(content, "utf-8", "surrogatepass")


def _latin1(content: memoryview) -> str:
    return str(content, "latin1")


def _whole(content: memoryview) -> int:
    if len(content) > 8:
        raise _Refused("it holds a whole number of more than 64 bits")
    return int.from_bytes(content, "little", signed=True)


STOP, PROTOCOL = ord("."), 0x80
# Long strings of Python 2 are the contents of arrays and stay in the file; short ones are text.
INSTRUCTIONS: dict[int, Callable[[_Machine], None]] = {
    PROTOCOL: _Machine.protocol,
    0x95: lambda machine: machine.skip(8),  # the length of a frame, which only groups what follows
    ord("("): lambda machine: machine.marks.append(len(machine.stack)),
    ord("N"): _push(lambda _: None),
    0x88: _push(lambda _: True),
    0x89: _push(lambda _: False),
    ord("J"): _push(lambda machine: machine.number("<i")),
    ord("K"): _push(lambda machine: machine.number("<B")),
    ord("M"): _push(lambda machine: machine.number("<H")),
    0x8A: _sized("<B", _whole),
    ord("U"): _sized("<B", _latin1),
    ord("T"): _sized("<i", lambda content: content),
    ord("C"): _sized("<B", bytes),
    ord("B"): _sized("<I", lambda content: content),
    0x8E: _sized("<Q", lambda content: content),
    0x96: _sized("<Q", lambda content: content),
    ord("X"): _sized("<I", _unicode),
    0x8C: _sized("<B", _unicode),
    0x8D: _sized("<Q", _unicode),
    ord("}"): _push(lambda _: {}),
    ord("]"): _push(lambda _: []),
    ord(")"): _push(lambda _: ()),
    ord("t"): _push(lambda machine: tuple(machine.since_mark())),
    0x85: lambda machine: machine.group(1),
    0x86: lambda machine: machine.group(2),
    0x87: lambda machine: machine.group(3),
    ord("q"): lambda machine: machine.keep(machine.number("<B")),
    ord("r"): lambda machine: machine.keep(machine.number("<I")),
    0x94: lambda machine: machine.keep(len(machine.memo)),
    ord("h"): _push(lambda machine: machine.memo[machine.number("<B")]),
    ord("j"): _push(lambda machine: machine.memo[machine.number("<I")]),
    ord("a"): _Machine.append,
    ord("e"): _Machine.extend,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.update,
    ord("c"): lambda machine: machine.find(machine.line(), machine.line()),
    0x93: lambda machine: machine.find(machine.stack.pop(-2), machine.stack.pop()),
    ord("R"): _Machine.call,
    ord("b"): _Machine.finish,
}
