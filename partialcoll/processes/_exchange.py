# SPDX-License-Identifier: Apache-2.0
"""What the processes talk to, by shape: anything with these methods will do.

`Exchange` is what `partialcoll.GossipBuffer` offers, and the simulator's buffer. `Reduction` is a
handle of ``Allreduce_init(comm, None, None, like=x, quorum="full")``, `GroupReduction` one of
``GroupAllreduce_init``. `Neighbours` is what `NeighbourExchange` offers. The processes know nothing
else of communication, and no MPI.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")


class Exchange(Protocol):
    """Registers, accumulators and queues of all ranks; nothing here waits for another rank.

    One thread at a time. Its methods are those of `partialcoll.GossipBuffer`, where they are
    described.
    """

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is exchanged."""

    @property
    def dtype(self) -> Any:
        """Of its elements."""

    @property
    def topology(self) -> Any:
        """Who may exchange with whom."""

    @property
    def stats(self) -> Any:
        """Counts."""

    def publish(self, x: Array) -> int:
        """Write the own register; its version."""

    def read(
        self, peer: int, *, key: Array | None = None, out: Array | None = None
    ) -> tuple[Array, int]:
        """A peer's register and its version."""

    def average(
        self,
        x: Array,
        peer: int,
        *,
        weight: float = 0.5,
        momentum: Array | None = None,
        ratio: float = 1.0,
    ) -> bool:
        """Average with a peer's register; False if too many deltas lie there uncollected."""

    def collect(self, x: Array, *, momentum: Array | None = None, ratio: float = 1.0) -> int:
        """Add what others accumulated here; how many deltas that were."""

    def pending(self) -> Array:
        """A copy of what lies uncollected here."""

    def push(
        self, peer: int, x: Array, *, key: Array | None = None, sent: Array | None = None
    ) -> bool:
        """Append to the peer's queue; False if it is full."""

    def drain(self, *, key: Array | None = None) -> list[tuple[int, Array]]:
        """Take all messages out of the own queue."""

    def peek(
        self, peer: int, *, key: Array | None = None, out: Array | None = None
    ) -> tuple[Array, int] | None:
        """The newest message in a peer's queue, left there."""

    def Free(self) -> None:
        """Free it."""


class PeerSource(Protocol):
    """Who is to be averaged with next."""

    def next_peer(self) -> int | None:
        """A rank, or None: nobody this time."""


class Waitable(Protocol):
    """Something begun that can be waited for."""

    def Wait(self, timeout: float | None = None) -> Any:
        """Wait for its end."""


class Reduction(Waitable, Protocol):
    """A persistent sum over all ranks."""

    @property
    def send_buffer(self) -> Any:
        """Where to put this rank's part, anew before each `Start`."""

    @property
    def result(self) -> Any:
        """The sum, after `Wait` and until the next `Start`."""

    @property
    def last_round(self) -> Any:
        """What the last wait returned; its `active` says how many ranks are in the sum."""

    def Start(self) -> None:
        """Hand in this rank's part."""

    def Free(self) -> None:
        """Free it. Collective."""


class GroupReduction(Waitable, Protocol):
    """A persistent average over a group of ranks, another one each round."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def send_buffer(self) -> Array:
        """What this rank puts in; it stays as it is until `Wait` has returned."""

    @property
    def recv_buffer(self) -> Array:
        """The average, after `Wait`; of a void round what was put in."""

    @property
    def last_round(self) -> Any:
        """What the last wait returned: its `active` ranks are in the average; was it `void`?"""

    @property
    def round(self) -> int:
        """The number of the next round."""

    @property
    def live(self) -> Sequence[int]:
        """Who takes part, as far as this rank knows."""

    @property
    def away(self) -> bool:
        """Has this rank left?"""

    def Start(self) -> None:
        """Hand in the send buffer for the next round."""

    def leave(self) -> None:
        """Take no part from now on. Local."""

    def rejoin(self) -> None:
        """Take part again. Local."""

    def Free(self) -> None:
        """Free it. Collective."""


class Neighbours(Waitable, Protocol):
    """A persistent exchange with the neighbours of this rank."""

    @property
    def send_buffer(self) -> Array:
        """What all neighbours get."""

    @property
    def received(self) -> Mapping[int, Array]:
        """What came from each neighbour, after `Wait` and until the next `Start`."""

    def Start(self) -> None:
        """Send, and begin to receive."""

    def Free(self) -> None:
        """Free it. Collective."""


# A piece of an algorithm that yields whatever it has to wait for. Under MPI it is waited for
# there and then (`drive`); the simulator goes on with another rank meanwhile.
Steps = Generator[Waitable, None, T]


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
