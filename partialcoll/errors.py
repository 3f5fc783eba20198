# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Error(RuntimeError):
    """Base of the errors that are partialcoll's own."""


class MismatchError(Error):
    """The ranks disagree about an argument; raised on all of them, naming it and the ranks."""


class StateError(Error):
    """The right call at the wrong moment: a freed handle, a second start, a second thread."""


class AbiError(ImportError):
    """The compiled core does not fit the MPI that mpi4py has loaded; says how to mend it."""


class DecodeError(Error):
    """A payload does not decode: it is truncated, damaged, none of ours, or the key is too far.

    Attributes
    ----------
    blocks : tuple of int
        The blocks of 1024 elements that failed; empty if the payload was refused as a whole.
    """

    def __init__(self, message: str, blocks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.blocks = tuple(blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.blocks))
