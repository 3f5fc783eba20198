# SPDX-License-Identifier: Apache-2.0
"""The end of what all ranks free together."""

from __future__ import annotations

import sys
import warnings
from typing import Any, TypeVar

from . import _settings, _waiting
from ._ffi import ffi

Self = TypeVar("Self", bound="FreedTogether")


class FreedTogether:
    """Has a core that a collective call frees: ``Free``, ``with``, and a warning if neither was.

    A subclass sets ``_pointer`` (to the core's handle), ``_size`` (ranks), ``_free`` (the core's
    function: pointer, microseconds) and ``_noun``.
    """

    _pointer: Any
    _size: int
    _free: Any
    _noun: str

    def Free(self, timeout: float | None = None) -> None:
        """Free it. Collective: its memory goes when all have come.

        A second call does nothing. Raises TimeoutError after `timeout` seconds; Free may be
        called again then.
        """
        _waiting.check_timeout(timeout)
        if self._pointer[0] == ffi.NULL:
            return
        if not _waiting.wait(self._try_to_free, timeout, self._say_who_waits):
            raise TimeoutError(f"not all ranks have freed the {self._noun} within {timeout} s")

    def _try_to_free(self, microseconds: int) -> int:
        return int(self._free(self._pointer, microseconds))

    def _say_who_waits(self, waited: float) -> None:
        _settings.logger.warning(
            "waiting for %.1f s in %s.Free: not all %d ranks have called it",
            waited,
            type(self).__name__,
            self._size,
        )

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.Free()

    def __del__(self) -> None:
        pointer = getattr(self, "_pointer", None)
        if pointer is not None and pointer[0] != ffi.NULL and not sys.is_finalizing():
            warnings.warn(
                f"a {type(self).__name__} was not freed: Free() is collective, nothing else can "
                "do it",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )
