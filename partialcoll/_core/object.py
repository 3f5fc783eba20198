# SPDX-License-Identifier: Apache-2.0
"""The life cycle of objects that all ranks create together and free together."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Callable, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import StateError
from . import checks, communicator, waiting
from .attendance import Members, attending
from .ffi import core
from .mpi import MPI
from .slots import bits

Record = TypeVar("Record")
Self = TypeVar("Self", bound="CollectiveObject")


class CollectiveObject:
    """An object that all ranks create together and free together: by ``Free`` or by the end of a
    ``with`` statement. If it ends without either, this process warns and does not communicate; a
    forked child does nothing. Not picklable. A subclass defines ``_is_freed``, ``_try_to_free``."""

    _noun: str  # what messages call it
    _process = 0  # id of the process that has created it; 0: it was not created
    # Called whenever a call has waited for a slice, between two waits in the core: a rank that
    # waits can serve others. True: again soon.
    _while_waiting: Callable[[], bool] | None = None

    def _enter(self, comm: MPI.Intracomm) -> Any:
        """Check who starts this process and what on; return the address of the communicator."""
        address = communicator.enter(comm)
        self._members = Members.of(comm)
        self._rank, self._size = comm.rank, comm.size
        self._process = os.getpid()
        return address

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    def _is_freed(self) -> bool:
        raise NotImplementedError

    def _begin_to_free(self) -> None:
        """Do the part of the end that needs no other rank."""

    def _try_to_free(self, microseconds: int) -> int:
        """Wait up to `microseconds` for all ranks to free it; return a result code of the core."""
        raise NotImplementedError

    def _after_free(self) -> None:
        """Clean up after all ranks have freed the object."""

    def Free(self, timeout: float | None = None) -> None:
        """Free it. Collective: its memory goes when all have come; idempotent. Raises TimeoutError
        after `timeout` seconds; Free may be called again then."""
        checks.time_limit("timeout", timeout)
        if self._is_freed():
            return
        self._begin_to_free()
        with attending(self._name_of("Free"), self._members):
            freed = waiting.wait(self._try_to_free, timeout, None, self._while_waiting)
        if not freed:
            raise TimeoutError(f"not all ranks have freed the {self._noun} within {timeout} s")
        self._after_free()

    def _name_of(self, method: str) -> str:
        return f"{type(self).__name__}.{method}"

    def _refuse_if_freed(self) -> None:
        if self._is_freed():
            raise StateError(f"the {self._noun} has been freed")

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.Free()

    def __del__(self) -> None:
        if self._process == os.getpid() and not sys.is_finalizing() and not self._is_freed():
            self._leak()

    def _leak(self) -> None:
        warnings.warn(
            f"a {self._noun} was not freed: Free() is collective, nothing else can do it",
            ResourceWarning,
            source=self,
            stacklevel=3,
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {self._noun} belongs to its process and cannot be pickled")


class CoreObject(CollectiveObject):
    """One that the core holds. A subclass names its type there, ``pcoll_<kind>``, and says whether
    there is a function of its own that begins to free it. Simulated ones have another library with
    the functions of that type."""

    _library = core
    _kind: str
    _maker: str  # what users call that makes it
    _begins_to_free = False

    def _enter(self, comm: MPI.Intracomm) -> Any:
        self._pointer = core.ffi.new(f"pcoll_{self._kind} **")
        return super()._enter(comm)

    def _create(
        self,
        comm: MPI.Intracomm,
        create: Any,
        arguments: Callable[[], tuple[Any, ...]],
        refused: tuple[Any, ...],
    ) -> None:
        """Make it. Collective: if `arguments` raises on this rank, the others get `refused`."""
        address = self._enter(comm)
        with attending(self._maker, self._members):
            try:
                given = arguments()
            except Exception as error:
                core.lib.pcoll_refuse(str(error).encode(errors="replace"))
                create(address, *refused, self._pointer)
                raise
            core.check(create(address, *given, self._pointer))

    def _core(self) -> Any:
        """Return what the core's functions take; StateError when it has been freed."""
        pointer = self._pointer[0]
        if not pointer:
            self._refuse_if_freed()
        return pointer

    def _function(self, name: str) -> Any:
        return getattr(self._library.lib, f"pcoll_{self._kind}_{name}")

    def _call(self, name: str, *arguments: Any) -> None:
        """Have the library do it, arrays given as they are; raise if it failed."""
        self._library.call(self._function(name), self._core(), *arguments)

    def _answer(self, ctype: str, name: str, *arguments: Any) -> Any:
        """Do the same, and return what it leaves where its last argument points to."""
        return self._library.answer(ctype, self._function(name), self._core(), *arguments)

    def _set_of_ranks(self, name: str, ranks: int) -> npt.NDArray[np.bool_]:
        words = self._library.ffi.new("uint64_t[]", (ranks + 63) // 64)
        self._call(name, words)
        return bits(self._library.ffi.buffer(words), ranks)

    def _counters(self, kind: type[Record]) -> Record:
        ctype, function = f"pcoll_{self._kind}_stats", self._function("get_stats")
        return self._library.answer_record(kind, ctype, function, self._core())

    def _is_freed(self) -> bool:
        return not self._pointer[0]

    def _begin_to_free(self) -> None:
        if self._begins_to_free:
            core.check(self._function("free_begin")(self._pointer[0]))

    def _try_to_free(self, microseconds: int) -> int:
        return int(self._function("free")(self._pointer, microseconds))
