"""Read the pickles that datasets are published as, without unpickling them.

A pickle is a program for a small virtual machine, and Python's runs any function the program names. This one knows
only what the files of CIFAR-100 and miniImageNet contain: text, numbers, lists, tuples, dictionaries, and numpy arrays,
for which it has its own builders; it cannot run anything else. `pickletools` of the standard library reads the
arguments of instructions, never more than the file holds. What is copied is bounded by the file's size, and large
arrays stay in the file, mapped into memory.
"""

from __future__ import annotations

import math
import mmap
import os
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kcl.core.opening import reading, regular
from kcl.errors import KclError

DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
MOST_DIMENSIONS = 8
NEWEST_PROTOCOL = 5
LONGEST_NAME = 255
OPCODES = {opcode.code.encode("latin1"): opcode for opcode in pickletools.opcodes}
LONG = {"BINSTRING": "<i", "BINBYTES": "<I", "BINBYTES8": "<Q", "BYTEARRAY8": "<Q"}
"""Instructions that push the contents of arrays, which stay in the file, and how their length is written before them.
Long strings of Python 2 are such contents too."""
PUSHED = (
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("SHORT_BINSTRING", "SHORT_BINBYTES", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
)
"""Instructions that push their argument."""
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
"""Instructions that push a new object."""


def read(path: Path) -> Any:
    """What a pickle holds. Python 2 text becomes str. Arrays may be changed; the file stays as it is."""
    # An empty file cannot be mapped; or the stack, the memo or a text is malformed.
    flaws = (ValueError, IndexError, KeyError, TypeError, RecursionError, struct.error)
    try:
        with reading(path, "a whole pickle", *flaws), open(path, "rb", opener=regular) as file:
            return _Machine(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)).run()
    except _Refused as error:
        raise KclError(f"{path} is not read: {error}") from None


class _Refused(Exception):
    """The pickle does something that is not allowed."""


class _EmptyArray:
    """An array before its content arrives; `place` is its key in the memo."""

    place: int | None = None


class _Machine:
    """The pickle machine with the instructions for plain data, protocols 2 to 5."""

    def __init__(self, file: mmap.mmap) -> None:
        self.file, self.content = file, memoryview(file)
        self.copies_left = 2 * len(file)
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        if self.content[0] != 0x80:
            raise _Refused("it does not begin like a pickle of protocols 2 to 5")
        while code := self.file.read(1):
            opcode = OPCODES.get(code)
            if opcode is None:
                raise _Refused(f"the instruction {code[0]} is unknown")
            if opcode.name == "STOP":
                return self.stack.pop()
            if form := LONG.get(opcode.name):
                self.stack.append(self.take(*struct.unpack(form, self.take(struct.calcsize(form)))))
                continue
            read_here = opcode.arg and opcode.arg.n != pickletools.UP_TO_NEWLINE
            argument = opcode.arg.reader(self.file) if read_here else None  # type: ignore[arg-type,union-attr]
            if isinstance(argument, int) and argument.bit_length() > 64:
                raise _Refused("it holds a whole number of more than 64 bits")
            self.execute(opcode.name, argument)
        raise _Refused("it is truncated: the end is missing")

    def take(self, count: int) -> memoryview:
        """The next bytes of the file, without a copy."""
        start, left = self.file.tell(), len(self.file) - self.file.tell()
        if not 0 <= count <= left:
            raise _Refused(f"it is truncated: {count} bytes were expected and {left} are left")
        self.file.seek(count, os.SEEK_CUR)
        return self.content[start : start + count]

    def line(self) -> str:
        start = self.file.tell()
        if self.file.find(b"\n", start, start + LONGEST_NAME) < 0:
            raise _Refused(f"it names something in more than {LONGEST_NAME} characters")
        return self.file.readline()[:-1].decode()

    def execute(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case _ if name in PUSHED:
                stack.append(argument)
            case _ if name in CONSTANTS:
                stack.append(CONSTANTS[name]())
            case "PROTO":
                if argument > NEWEST_PROTOCOL:
                    advice = f"save it again with protocol {NEWEST_PROTOCOL}"
                    raise _Refused(f"it is written in pickle protocol {argument}; {advice}")
            case "FRAME":
                pass  # only groups what follows
            case "MARK":
                self.marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(self.since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple([stack.pop() for _ in range(int(name[-1]))][::-1]))
            case "BINPUT" | "LONG_BINPUT":
                self.keep(argument)
            case "MEMOIZE":
                self.keep(len(self.memo))
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "APPEND":
                self.extend([stack.pop()])
            case "APPENDS":
                self.extend(self.since_mark())
            case "SETITEM":
                self.insert([stack.pop(-2), stack.pop()])
            case "SETITEMS":
                self.insert(self.since_mark())
            case "GLOBAL":
                stack.append(_find_builder(self.line(), self.line()))
            case "STACK_GLOBAL":
                stack.append(_find_builder(stack.pop(-2), stack.pop()))
            case "REDUCE":
                self.call(stack.pop(), stack.pop())
            case "BUILD":
                self.finish(stack.pop())
            case _:
                raise _Refused(f"the instruction {name} is not needed for plain data")

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def keep(self, place: int) -> None:
        top = self.stack[-1]
        if isinstance(top, _EmptyArray):
            top.place = place
        self.memo[place] = top

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def insert(self, items: list[Any]) -> None:
        """Keys are text or numbers: hashing deeply nested tuples could crash the process."""
        target = self.top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise _Refused(f"it has a dictionary with a {type(key).__name__} for a key")
            target[key] = value

    def top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise _Refused(f"it adds to what is no {kind.__name__}")
        return self.stack[-1]

    def call(self, arguments: Any, builder: Any) -> None:
        """One of the few functions a pickle may call: ours, under numpy's name."""
        if not isinstance(builder, _Builder) or not isinstance(arguments, tuple):
            raise _Refused("it calls what cannot be called")
        self.stack.append(builder.build(self, *arguments))

    def finish(self, state: Any) -> None:
        """Give an array its content, and replace it in the memo too; check a data type."""
        unfinished = self.stack[-1]
        if not isinstance(unfinished, (_EmptyArray, np.dtype)):
            raise _Refused("it changes an object that is not an array")
        if not isinstance(state, tuple) or len(state) < 5:
            raise _Refused("it holds an array in an unknown form")
        if isinstance(unfinished, np.dtype):
            if _name(state[1]) not in ("<", "|", "="):
                raise _Refused("it holds numbers in a byte order other than little-endian")
            if any(part is not None for part in state[2:5]):
                raise _Refused("it holds an array of structures")
            return
        _, shape, dtype, by_column, raw = state
        self.stack[-1] = self.array(raw, dtype, shape, "F" if by_column else "C")
        if unfinished.place is not None:
            self.memo[unfinished.place] = self.stack[-1]

    def copy(self, raw: Any) -> bytearray:
        """A piece of the file may be named any number of times; copies of it are counted."""
        self.copies_left -= len(raw)
        if self.copies_left < 0:
            raise _Refused("it copies the same content many times")
        return bytearray(raw, "latin1") if isinstance(raw, str) else bytearray(raw)

    def array(self, raw: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
        if not isinstance(dtype, np.dtype) or not isinstance(shape, tuple) or len(shape) > MOST_DIMENSIONS:
            raise _Refused("it holds an array in an unknown form")
        if not all(isinstance(length, int) and length >= 0 for length in shape):
            raise _Refused("it claims an array whose shape is not made of whole numbers from 0")
        if not isinstance(raw, (str, bytes, bytearray, memoryview)):
            raise _Refused("it holds an array of objects")
        claimed = math.prod(shape) * dtype.itemsize
        if claimed != len(raw):
            raise _Refused(f"it claims an array of shape {shape}, {claimed} bytes, and holds {len(raw)} bytes")
        writable = self.copy(raw) if isinstance(raw, (str, bytes)) else raw
        return np.frombuffer(writable, dtype).reshape(shape, order="F" if _name(order) == "F" else "C")

    def empty_array(self, *_: Any) -> _EmptyArray:
        return _EmptyArray()

    def dtype(self, code: Any, *_: Any) -> np.dtype:
        if _name(code) not in DTYPES:
            raise _Refused(f"it holds an array of type {_name(code)!r}, which is none of {', '.join(DTYPES)}")
        return np.dtype(f"<{_name(code)}")

    def scalar(self, dtype: Any, raw: Any = b"") -> Any:
        return self.array(raw, dtype, ()).item()

    def encode(self, text: Any, encoding: Any = "") -> bytearray:
        """Python 3 writes bytes for Python 2 as Latin-1 text."""
        if not isinstance(text, str) or _name(encoding) not in ("latin1", "latin-1"):
            raise _Refused("it encodes text in an unknown encoding")
        return self.copy(text)


class _Builder(NamedTuple):
    build: Callable[..., Any]


BUILDERS = {
    "numpy.ndarray": _Builder(_Machine.empty_array),
    "numpy.dtype": _Builder(_Machine.dtype),
    "_codecs.encode": _Builder(_Machine.encode),
    **{f"numpy.{core}.multiarray._reconstruct": _Builder(_Machine.empty_array) for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _Builder(_Machine.scalar) for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _Builder(_Machine.array) for core in ("core", "_core")},
}


def _find_builder(module: Any, name: Any) -> _Builder:
    if not isinstance(module, str) or not isinstance(name, str):
        raise _Refused("it asks for something without naming it")
    path = f"{module}.{name}"
    if path not in BUILDERS:
        raise _Refused(f"it asks for {path[:100]!r}; no dataset needs that, so the file may be meant to do harm")
    return BUILDERS[path]


def _name(value: Any) -> str:
    """A short text, which Python 2 may have written as bytes; empty for anything else."""
    if not isinstance(value, (str, bytes, bytearray)) or len(value) > LONGEST_NAME:
        return ""
    return value if isinstance(value, str) else value.decode("latin1")
