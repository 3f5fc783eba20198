# SPDX-License-Identifier: Apache-2.0
"""This rank's state for peers that need it, and theirs for this rank: the process's, and with it
that of whatever makes its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

from ..collectives.resync import Replica
from ..collectives.state_exchange import StateExchange


class PeerState:
    """Over an exchange. `passenger`: what a state is not complete without, an optimizer's."""

    def __init__(self, exchange: StateExchange, passenger: Replica | None = None) -> None:
        self._exchange, self._passenger = exchange, passenger

    def serve(self, round: int, state: Callable[[], dict[str, Any]]) -> bool:
        """Send it to those who have asked, if it is of the round they want. Local."""

        def complete() -> dict[str, Any]:
            more = {} if self._passenger is None else {"passenger": self._passenger.capture()}
            return {**state(), **more}

        return self._exchange.serve(round, complete)

    def take(
        self,
        peers: Iterable[int] | None,
        load: Callable[[dict[str, Any]], None],
        *,
        least_round: int = 0,
        timeout: float | None = None,
    ) -> int:
        """Load that of a peer, whose round is returned. TimeoutError if nobody had one. Local."""
        round, state = self._exchange.ask(peers, least_round=least_round, timeout=timeout)
        passenger = state.pop("passenger", None)
        load(state)
        if self._passenger is not None:
            self._passenger.restore(passenger)
        return round
