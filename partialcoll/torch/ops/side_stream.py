# SPDX-License-Identifier: Apache-2.0
"""Where tensors of a device are moved: on a stream of their own, by whatever thread is at it.

What the current stream was given before a call comes before its data moves; what it is given
afterwards waits for nothing, as for a kernel of its own it would have to, and the data does not
wait for that. At the end somebody waits on the host, so that whoever takes the result need not
know of any stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device | None:
    """The one on which some of them are; None: all are the host's. ValueError: there are two."""
    found = sorted({str(t.device) for t in tensors if t.device.type != "cpu"})
    if len(found) > 1:
        raise ValueError(f"tensors: expected them on one device, got {' and '.join(found)}")
    return torch.device(found[0]) if found else None


def in_stream(device: torch.device, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call in whatever thread, on the stream that is current here and now."""
    if device.type == "cpu":
        return call
    module: Any = getattr(torch, device.type)
    current = module.current_stream(device)

    def there() -> Any:
        with module.stream(current):
            return call()

    return there


def room_for_rows(like: torch.Tensor, count: int) -> torch.Tensor:
    return torch.empty((count, *like.shape[1:]), dtype=like.dtype, device=like.device)


class SideStream:
    """Of one call. In a ``with`` statement it is the current one."""

    def __init__(self, device: torch.device) -> None:
        self._module: Any = getattr(torch, device.type)
        self._callers = self._module.current_stream(device)
        self._stream = self._module.Stream(device)
        self._stream.wait_event(self._callers.record_event())
        self._entered: list[Any] = []

    def __enter__(self) -> None:
        self._entered.append(self._module.stream(self._stream))
        self._entered[-1].__enter__()

    def __exit__(self, *error: object) -> None:
        self._entered.pop().__exit__(*error)

    def rows(self, like: torch.Tensor, count: int) -> torch.Tensor:
        """Room for so many rows like a tensor's. It is of the caller's stream, which goes on with
        it and frees it, so that what had this memory before must come first."""
        with self._module.stream(self._callers):
            room = room_for_rows(like, count)
        self._stream.wait_event(self._callers.record_event())
        return room

    def settle(self) -> None:
        """Wait for what it was given."""
        self._stream.synchronize()


class _None(contextlib.nullcontext[None]):
    """Of tensors of the host."""

    @staticmethod
    def rows(like: torch.Tensor, count: int) -> torch.Tensor:
        return room_for_rows(like, count)

    def settle(self) -> None:
        """There is nothing."""


def side_stream(tensors: Sequence[torch.Tensor]) -> SideStream | _None:
    """For a call that reads or fills these."""
    device = device_of(tensors)
    return _None() if device is None else SideStream(device)
