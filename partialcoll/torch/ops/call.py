# SPDX-License-Identifier: Apache-2.0
"""A collective call: its description for the other ranks, the steps of its data, and its state."""

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

Steps = Iterator[Any]  # yields the handles and MPI requests to wait for, one after the other
Move = Union[Callable[[Handles], Steps], Steps, "list[Reduction]", None]


def _in_turn(reductions: list[Reduction], handles: Handles) -> Steps:
    for one in reductions:
        yield from one.steps(handles)


def complete(step: Any, wait: bool, patient: Callable[[], Any]) -> Any:
    """Wait for a step: return the round of a handle, or False for a request. With wait=False return
    None if the step is incomplete. patient: called while waiting; an exception of it ends the
    wait."""
    if isinstance(step, AllreduceHandle):
        return step.Wait() if wait else step.Test()
    if wait:
        waiting.until(step.Test, patient)
    elif not step.Test():
        return None
    return False


class Call(Work):
    """A collective call in progress, which the asynchronous functions return.

    Pass it to `poll` and `synchronize`. After `synchronize`, `round` is the `partialcoll.Round`
    that delivered the result.

    Only the library creates calls:

    Parameters
    ----------
    text : str
        The description, which all ranks compare.
    move
        The steps of the data, after the comparison: an iterator, a function that returns one for
        given handles, or a list of reductions. None: there is no data.
    tensors : sequence of torch.Tensor
        The tensors that the call fills.
    first : Reduction or None
        The reduction with which `move` begins.
    apart : bool
        Whether the next call may begin while this one is in progress.
    timeout : float
        Limit in seconds.
    refused : bool
        Whether this rank's arguments are wrong.
    read : sequence of torch.Tensor
        Further tensors that may be on a device.
    role : str
        The role of the intent: ranks that have joined may be missing from reductions.
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
            # Several reductions may need new handles, which are created only while this call is the
            # first in the queue. So none of them begins early.
            first = move[0] if len(move) == 1 else None
            move = first.steps if first else partial(_in_turn, move)
        self._first, self._move = first, move
        self._intent = Intent(text, None if first is None else first.key, apart, refused, role)
        self._began = time.monotonic()
        self._agreed_at: float | None = None
        self._timeout, self._deadline = timeout, self._began + timeout
        self.compared = False  # whether all ranks have compared it already
        self._queue: Any = None  # the queue that processes it
        self._channel: Channel | None = None
        self._steps: Steps | None = None  # once all ranks agree
        self._step: Any = None  # the step that its data waits for
        self._moved = False
        self.in_background = False  # the worker thread completes it
        self.without: bool = False  # it continues without ranks that have joined
        self._outcome: BaseException | None = None
        self.round: Round | None = None
        self.quorum: Policy | None = None  # None: all ranks make it
        self.lands: list[Callable[[], Any]] = []  # called before the result is returned
        self.found: list[list[torch.Tensor]] = []  # received tensors of sizes not known before
        self.shown: Callable[[list[torch.Tensor]], Any] = lambda tensors: tensors[0]  # the result

    @property
    def _agreed(self) -> bool:
        return self._steps is not None

    @property
    def joined(self) -> bool:
        """Whether this is the call of a rank that has joined."""
        return self._intent.role == JOINED

    @property
    def begun(self) -> bool:
        """Whether its data has been sent."""
        return self._first is not None and self._first.begun is not None

    @property
    def on_its_way(self) -> bool:
        """Whether its data is in flight on a handle that no other call uses."""
        return self.begun and self._intent.apart and not self.without

    @property
    def key(self) -> Key | None:
        """The key of the handle that it needs first."""
        return self._intent.key

    def poll(self) -> bool:
        """Advance without blocking; return whether the call has ended, with or without an error."""
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
    """A channel, which one call at a time uses. agreement: None: nothing is compared. own: private
    handles. Created collectively."""

    def __init__(self, agreement: Agreement | None, own: Handles) -> None:
        self.agreement, self.own = agreement, own
        self.call: Call | None = None  # the call that uses it


def result_of(call: Call) -> Any:
    """Wait for the end of the call; return its result, or raise its error."""
    call.wait()
    while call.lands:
        call.lands.pop()()
    return call.shown(call.result())
