# SPDX-License-Identifier: Apache-2.0
"""Calls of ranks that go on while others have joined: those take part with nothing of their own.

A rank that has joined does not know what the others call next. So when the ranks compare, it says
that it has joined; if the others agree on a call that allows it, the first of them tells what is
reduced, and then all reduce. The next calls wait for this one on all ranks alike, since its data
moves in collectives of the communicator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...collectives import state_exchange
from ...collectives.agreement import JOINED, OPEN, Intent
from .call import Call
from .handles import Handles, Reduction
from .transfer import spread_buffers


def first_of_the_rest(heard: dict[int, Intent]) -> int | None:
    """The first rank that has not joined, if all that have not make the same call, and it may be
    made without the others."""
    rest = [rank for rank, one in heard.items() if one.role != JOINED]
    if not rest or len(rest) == len(heard) or len({heard[rank] for rank in rest}) > 1:
        return None
    return rest[0] if heard[rest[0]].role == OPEN else None


def steps(call: Call, first: int, handles: Handles) -> Iterator[Any]:
    """How its data moves, on a rank that makes it and on one that has joined."""
    blanks = [one.blank() for one in call.reductions] if handles.comm.rank == first else None
    told = state_exchange.pack(blanks) if blanks is not None else []
    yield from spread_buffers(handles, told, first)
    if call.joined:
        reductions = [Reduction.without_values(*one) for one in state_exchange.unpack(told)]
    else:
        reductions = call.reductions
    for one in reductions:
        yield from one.steps(handles)
