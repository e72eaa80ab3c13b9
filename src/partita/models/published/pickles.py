"""A pickle read as data: no name in it is imported, nothing in it is called.

A pickle is a program for a small stack machine. The standard library's disassembler splits it
into instructions; this file carries out those that build plain values: texts, numbers, tuples,
lists, dictionaries, tensors that lie elsewhere in the same file, and parts of a configuration
(`Node`, which only keeps what it is given). Whatever else a program makes (an instance of some
class, the result of some call) becomes `OPAQUE`, one inert value that swallows all that is done to
it. Python's own unpickler, however restricted, calls what it is given, hashes what it finds, and
allocates as much as a pickle says; this one does not. Nor is torch's loader for weights alone
enough: nested keys end its process, and it does not read the pickle protocols from 4 on.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from partita.files.reading import DamagedError
from partita.models.published.pickled_values import KNOWN, OPAQUE, Node, Opaque, made, storage_named

# Far more than tensors take: some checkpoints hold their tokenizer, with all its words.
LARGEST = 1 << 26  # bytes
MOST_STEPS = 4_000_000
_MOST_PLACES = (1 << 32) - 1
_SHOWN = 64  # characters of a reason


def loads(data: bytes) -> object:
    """The value that a pickle stands for, with `View` for tensors and `OPAQUE` for the rest."""
    if len(data) > LARGEST:
        raise DamagedError(f"its pickle has {len(data)} bytes, which no model needs")
    machine = _Machine()
    try:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name == "STOP":
                return machine.stack.pop()
            if step == MOST_STEPS:
                break
            machine.step(opcode.name, argument)
    except (ValueError, LookupError, TypeError, MemoryError) as error:
        why = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        raise DamagedError(f"its pickle makes no sense: {why}") from error
    raise DamagedError("its pickle has no end")


class _Machine:
    """The stack, the marks on it, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: object) -> None:
        """Carry out one instruction."""
        if name in _CONSTANTS:
            self.stack.append(argument)
        elif name in _NEW:
            self.stack.append(_NEW[name]())
        elif name in _JOINED:
            self._join(*_JOINED[name])
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in _IDLE:
            raise DamagedError(f"its pickle has the instruction {name}, which no model needs")

    def marked(self) -> list[Any]:
        """Take everything above the last mark."""
        start = self.marks.pop()
        if start > len(self.stack):
            raise ValueError("a mark above the stack")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _join(self, count: int, build: Callable[[list[Any]], Any]) -> None:
        """Values on the stack (those above the last mark for a count of 0) as one."""
        self.stack.append(build(self.popped(count) or self.marked()))

    def popped(self, count: int) -> list[Any]:
        """Take so many values, in the order in which they were pushed."""
        return [self.stack.pop() for _ in range(count)][::-1]

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is list:
            self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        _store(self.stack[-1], items)

    def put(self, place: int | None) -> None:
        place = len(self.memo) if place is None else place
        if not 0 <= place <= _MOST_PLACES:
            raise ValueError("a place far away")
        self.memo[place] = self.stack[-1]

    def name(self, argument: str) -> None:
        self.stack.append(KNOWN.get(argument, OPAQUE))

    def stacked_name(self, _: object) -> None:
        module, name = self.popped(2)
        self.name(f"{module} {name}" if type(name) is type(module) is str else "")

    def call(self, _: object) -> None:
        what, arguments = self.popped(2)
        self.stack.append(made(what, arguments if type(arguments) is tuple else ()))

    def build(self, _: object) -> None:
        """State for what lies below; plain values have none (an OrderedDict's are notes)."""
        state = self.stack.pop()
        if isinstance(self.stack[-1], Node) and type(state) is dict:
            self.stack[-1].state = state


def _store(target: object, items: list[Any]) -> None:
    """Keys and values into a dictionary. Keys that are no text are left out.

    Nothing that is wanted stands under one, and hashing deeply nested keys can take forever.
    """
    if type(target) is dict:
        pairs = zip(items[::2], items[1::2], strict=True)
        target.update((key, value) for key, value in pairs if type(key) is str)


def _dictionary(items: list[Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    _store(result, items)
    return result


def _opaque(_: object = None) -> Opaque:
    return OPAQUE


# Texts, numbers and bytes: instructions that push their own argument, of a known type.
_CONSTANTS = frozenset(
    opcode.name
    for opcode in pickletools.opcodes
    if opcode.arg and not opcode.stack_before and opcode.stack_after
    if opcode.stack_after != [pickletools.anyobject]
)
_IDLE = ("PROTO", "FRAME")
_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    **dict.fromkeys(("EMPTY_SET", "EXT1", "EXT2", "EXT4"), _opaque),
}
_JOINED: dict[str, tuple[int, Callable[[list[Any]], Any]]] = {
    "TUPLE1": (1, tuple),
    "TUPLE2": (2, tuple),
    "TUPLE3": (3, tuple),
    "TUPLE": (0, tuple),
    "LIST": (0, list),
    "DICT": (0, _dictionary),
    "NEWOBJ_EX": (3, _opaque),  # a call with keywords
    **dict.fromkeys(("FROZENSET", "OBJ", "INST"), (0, _opaque)),
}
_ACTIONS: dict[str, Callable[[_Machine, Any], Any]] = {
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.marked(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, at: m.stack.append(m.memo[at])),
    "APPEND": lambda machine, _: machine.extend(machine.popped(1)),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda machine, _: machine.extend(machine.marked())),
    "SETITEM": lambda machine, _: machine.set_items(machine.popped(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.stacked_name,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.call),
    "BUILD": _Machine.build,
    "BINPERSID": lambda machine, _: machine.stack.append(storage_named(machine.stack.pop())),
}
