# SPDX-License-Identifier: Apache-2.0
"""The parts of the core that need neither MPI nor other ranks: the numbers of its kinds, policies,
grids, the codec, and the core's objects over simulated ranks. The compiled library of the simulator
holds them; it can be loaded everywhere. Only this module accesses that library."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable, NoReturn, TypeVar

import numpy as np

from ..errors import Error, MismatchError, RankFailedError, StateError

T = TypeVar("T")


class Library:
    """Calls a compiled library: arrays as addresses, result codes as exceptions. It has the ``ffi``
    and ``lib`` of a module that cffi has made of csrc/, which `load` returns when something of it
    is first used. `raise_foreign` raises what code ``PCOLL_EMPI`` stands for."""

    def __init__(
        self, load: Callable[[], Any], raise_foreign: Callable[[], None] | None = None
    ) -> None:
        self._load = functools.cache(load)
        self._raise_foreign = raise_foreign

    @functools.cached_property
    def ffi(self) -> Any:
        return self._load().ffi

    @functools.cached_property
    def lib(self) -> Any:
        return self._load().lib

    @functools.cached_property
    def _exceptions(self) -> dict[int, type[Exception]]:
        return {
            self.lib.PCOLL_EINVAL: ValueError,
            self.lib.PCOLL_ESTATE: StateError,
            self.lib.PCOLL_EMISMATCH: MismatchError,
            self.lib.PCOLL_ENOMEM: MemoryError,
            self.lib.PCOLL_EPROTOCOL: Error,
            self.lib.PCOLL_ETHREAD: StateError,
            self.lib.PCOLL_EEMPTY: StateError,
        }

    def last_error(self) -> str:
        return str(self.ffi.string(self.lib.pcoll_last_error()).decode(errors="replace"))

    def raise_error(self, code: int) -> NoReturn:
        """Raise what a negative result code stands for, with the library's own message."""
        if code == self.lib.PCOLL_EMPI and self._raise_foreign is not None:
            self._raise_foreign()
        if code == self.lib.PCOLL_EFAILED:
            ranks = self.ffi.new("int32_t[64]")
            count = self.lib.pcoll_failed_ranks(ranks, len(ranks))
            raise RankFailedError(list(ranks[0:count]), self.last_error())
        raise self._exceptions.get(code, Error)(self.last_error())

    def check(self, code: int) -> None:
        if code != 0:
            self.raise_error(code)

    def plain(self, argument: Any) -> Any:
        """Return an array as its address, which is valid as long as the array; None as NULL."""
        if isinstance(argument, np.ndarray):
            return self.ffi.cast("void *", argument.ctypes.data)
        return self.ffi.NULL if argument is None else argument

    def call(self, function: Any, *arguments: Any) -> None:
        self.check(function(*map(self.plain, arguments)))

    def answer(
        self, ctype: str, function: Any, *arguments: Any, check: Callable[[int], None] | None = None
    ) -> Any:
        found = self.ffi.new(f"{ctype} *")
        (check or self.check)(function(*map(self.plain, arguments), found))
        return found[0]

    def answer_text(self, function: Any, *arguments: Any) -> str:
        """Return the text that a function leaves in a ``char **``; free it."""
        text = self.answer("char *", function, *arguments)
        try:
            return str(self.ffi.string(text).decode(errors="replace"))
        finally:
            self.lib.pcoll_text_free(text)

    def answer_record(self, kind: type[T], ctype: str, function: Any, *arguments: Any) -> T:
        """Return a dataclass with the fields of the struct that a function fills in."""
        struct = self.ffi.new(f"{ctype} *")
        self.call(function, *arguments, struct)
        return kind(**{name: getattr(struct, name) for name in kind.__annotations__})


simulator = Library(lambda: importlib.import_module("partialcoll._simulator"))
ffi, lib = simulator.ffi, simulator.lib
check = simulator.check
call = simulator.call
answer = simulator.answer


def codes(kind: str, *words: str) -> dict[str, int]:
    """Return the numbers that the core has for these words, as "agent" of "PROGRESS"."""
    return {word: getattr(lib, f"PCOLL_{kind}_{word.upper()}") for word in words}
