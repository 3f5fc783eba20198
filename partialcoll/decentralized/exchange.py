# SPDX-License-Identifier: Apache-2.0
"""What the processes talk to, by shape: anything with the methods of these classes will do, as the
simulator's have them. The processes know nothing else of communication, and no MPI.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from .._core.buffers import Array
from ..collectives.gossip import GossipBuffer as Exchange
from ..collectives.group import GroupAllreduce as GroupReduction
from ..collectives.handle import AllreduceHandle as Reduction

__all__ = [
    "Array",
    "Exchange",
    "GroupReduction",
    "PeerSource",
    "Reduction",
    "Steps",
    "Waitable",
    "drive",
    "finish",
]

T = TypeVar("T")


class PeerSource(Protocol):
    """Who is to be averaged with next."""

    def next_peer(self) -> int | None:
        """A rank, or None: nobody this time."""


class Waitable(Protocol):
    """Something begun that can be waited for."""

    def Wait(self, timeout: float | None = None) -> Any:
        """Wait for its end. TimeoutError after `timeout` seconds; None: never."""


# A piece of an algorithm that yields whatever it has to wait for. Under MPI it is waited for
# there and then (`drive`); the simulator goes on with another rank meanwhile.
Steps = Generator[Waitable, None, T]


def finish(reduction: Any) -> Steps[None]:
    """Wait for what an exception has left under way: the other ranks have gone on from there."""
    if getattr(reduction, "_started", False):
        yield reduction


def drive(steps: Steps[T]) -> T:
    """Carry it out, waiting where it has to; its result."""
    try:
        while True:
            next(steps).Wait()
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()
