# SPDX-License-Identifier: Apache-2.0
"""Where a call's tensors are moved: in the inference mode in which the call was made, whatever
thread is at it, and those of a device on a stream of their own.

What the current stream was given before a call comes before its data moves; what it is given
afterwards waits for nothing, as for a kernel of its own it would have to, and the data does not
wait for that. At the end somebody waits on the host, so that whoever takes the result need not
know of any stream.
"""

from __future__ import annotations

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


class Side:
    """Of one call. Around what it does with tensors there is a ``with`` statement."""

    def __init__(self) -> None:
        self._inference = torch.is_inference_mode_enabled()
        self._entered: list[Any] = []

    def _enter(self, context: Any) -> None:
        context.__enter__()
        self._entered.append(context)

    def __enter__(self) -> None:
        if torch.is_inference_mode_enabled() != self._inference:
            self._enter(torch.inference_mode(self._inference))

    def __exit__(self, *error: object) -> None:
        while self._entered:
            self._entered.pop().__exit__(*error)

    def rows(self, like: torch.Tensor, count: int) -> torch.Tensor:
        """Room for so many rows like a tensor's."""
        return room_for_rows(like, count)

    def settle(self) -> None:
        """Wait for what was begun there."""


class SideStream(Side):
    """With a stream, which is the current one within the statement."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._module: Any = getattr(torch, device.type)
        self._callers = self._module.current_stream(device)
        self._stream = self._module.Stream(device)
        self._stream.wait_event(self._callers.record_event())

    def __enter__(self) -> None:
        super().__enter__()
        self._enter(self._module.stream(self._stream))

    def rows(self, like: torch.Tensor, count: int) -> torch.Tensor:
        """It is of the caller's stream, which goes on with it and frees it, so that what had this
        memory before must come first."""
        with self._module.stream(self._callers):
            room = room_for_rows(like, count)
        self._stream.wait_event(self._callers.record_event())
        return room

    def settle(self) -> None:
        self._stream.synchronize()


def side_of(tensors: Sequence[torch.Tensor]) -> Side:
    """For a call that reads or fills these."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            device = device_of(tensors)
            assert device is not None
            return SideStream(device)
    return Side()
