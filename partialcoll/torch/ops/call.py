# SPDX-License-Identifier: Apache-2.0
"""A collective call: what this rank is about to do, how its data moves, and how far it has come."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable, Union

import torch

from ..._core import timeline, waiting
from ...collectives.agreement import JOINED, Agreement, Intent, Key
from ...collectives.handle import AllreduceHandle
from ...policy import Policy
from ...round import Round
from .handles import Handles, Reduction
from .side_stream import side_of
from .work import Work

Steps = Iterator[Any]  # handles and MPI's requests that are to be waited for, in turn
Move = Union[Callable[[Handles], Steps], Steps, "list[Reduction]", None]


def _in_turn(reductions: list[Reduction], handles: Handles) -> Steps:
    for one in reductions:
        yield from one.steps(handles)


def complete(step: Any, wait: bool, patient: Callable[[], Any]) -> Any:
    """Wait for what a call's data waits for: the round of a handle, False of a request; or, not to
    wait, None if it goes on. patient: called meanwhile; what it raises ends the wait."""
    if isinstance(step, AllreduceHandle):
        return step.Wait() if wait else step.Test()
    if wait:
        waiting.until(step.Test, patient)
    elif not step.Test():
        return None
    return False


class Call(Work):
    """A collective call that has begun; what the asynchronous functions return.

    Pass it to `poll` and `synchronize`. After `synchronize`, `round` is the `partialcoll.Round`
    that brought the result.

    The library makes it, of these:

    Parameters
    ----------
    text : str
        What all ranks agree on.
    move
        How the data moves, once they do: the steps, which begin when they are asked for, or what
        gives them on these handles; None: there is none.
    tensors : sequence of torch.Tensor
        What it fills.
    first : Reduction or None
        One with which `move` begins.
    apart : bool
        It may still be under way when the next one begins.
    timeout : float
        Seconds.
    refused : bool
        By this rank.
    read : sequence of torch.Tensor
        What else may be on a device.
    role : str
        Of the intent; ranks that have joined may be missing from reductions.
    """

    def __init__(
        self,
        text: str,
        move: Move = None,
        tensors: Sequence[torch.Tensor] = (),
        *,
        first: Reduction | None = None,
        apart: bool = False,
        timeout: float = math.inf,
        refused: bool = False,
        read: Sequence[torch.Tensor] = (),
        role: str = "",
    ) -> None:
        super().__init__(list(tensors))
        self.reductions: list[Reduction] = move if isinstance(move, list) else []
        self.side = side_of([*tensors, *read])
        if isinstance(move, list):
            # Several need handles that may have to be made, in this call's turn: none begins early.
            first = move[0] if len(move) == 1 else None
            move = first.steps if first else partial(_in_turn, move)
        self._first, self._move = first, move
        self._intent = Intent(text, None if first is None else first.key, apart, refused, role)
        self._began = time.monotonic()
        self._agreed_at: float | None = None
        self._timeout, self._deadline = timeout, self._began + timeout
        self.compared = False  # by all ranks already: they make the same
        self._queue: Any = None  # drives it
        self._channel: Channel | None = None
        self._steps: Steps | None = None  # once all ranks agree
        self._step: Any = None  # what its data waits for
        self._moved = False
        self.in_background = False  # a thread sees to it
        self.without: bool = False  # ranks that have joined; so it waits for its turn
        self._outcome: BaseException | None = None
        self.round: Round | None = None
        self.quorum: Policy | None = None  # None: all ranks make it
        self.lands: list[Callable[[], Any]] = []  # what who takes the result has to do for it
        self.found: list[list[torch.Tensor]] = []  # what has come, where only the ranks know sizes
        self.shown: Callable[[list[torch.Tensor]], Any] = lambda tensors: tensors[0]  # the result

    @property
    def _agreed(self) -> bool:
        return self._steps is not None

    @property
    def joined(self) -> bool:
        """Is it what a rank says that has joined?"""
        return self._intent.role == JOINED

    @property
    def begun(self) -> bool:
        """Has its data left?"""
        return self._first is not None and self._first.begun is not None

    @property
    def on_its_way(self) -> bool:
        """Has its data left, where no other call's can be?"""
        return self.begun and self._intent.apart and not self.without

    @property
    def key(self) -> Key | None:
        """Of the handle that it needs first."""
        return self._intent.key

    def poll(self) -> bool:
        """Is it over, well or badly? Carries on what can be, never waits for another rank."""
        over: bool = self._queue.poll(self)
        return over

    def _ensure(self) -> None:
        self._queue.wake()

    def _carry_out(self) -> None:
        self._queue.drive(self)

    def _aside(self) -> Any:
        return self._queue.aside()

    def _end(self, error: BaseException | None = None) -> None:
        if timeline.recorder is not None:
            timeline.recorder.call(str(self), self._began, self._agreed_at)
        self._move = self._first = self._steps = None  # they hold tensors
        self.reductions = []
        super()._end(error)

    def __str__(self) -> str:
        return self._intent.text


class Channel:
    """What calls take turns on. agreement: None: nothing is compared. own: handles for calls that
    are apart. Made collectively."""

    def __init__(self, agreement: Agreement | None, own: Handles) -> None:
        self.agreement, self.own = agreement, own
        self.call: Call | None = None  # that is on it


def result_of(call: Call) -> Any:
    """Wait until it is over; its result, or its error."""
    call.wait()
    while call.lands:
        call.lands.pop()()
    return call.shown(call.result())
