# SPDX-License-Identifier: Apache-2.0
"""The communication thread: does one event after the other, and naps when there is none."""

from __future__ import annotations

import threading
from typing import Callable

from .._core import finalize
from ..errors import StateError

# Seconds. A nap doubles while nothing happens: what others leave here is found soon after a busy
# time, and an idle process costs less than a hundredth of a core.
_SHORTEST = 0.5e-3
LONGEST_NAP = 40e-3


class CommunicationThread:
    """Calls `event` until told to stop.

    Parameters
    ----------
    event : callable
        One communication event; False if there was nothing to do.
    next_event : callable
        Seconds until there will be something, or None.
    longest_nap : callable
        Seconds after which it looks for what others have left here, at most.
    """

    def __init__(
        self,
        event: Callable[[], bool],
        next_event: Callable[[], float | None],
        longest_nap: Callable[[], float] = lambda: LONGEST_NAP,
    ) -> None:
        self._event = event
        self._next_event = next_event
        self._longest_nap = longest_nap
        self._work = threading.Event()
        self._stopping = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Has it been started and not stopped?"""
        return self._thread is not None

    def start(self) -> None:
        """Idempotent."""
        self.check()
        if self._thread is None:
            self._stopping = False
            name = "partialcoll communication"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
            finalize.at_end(self.stop)  # inside MPI it must not be then

    def wake(self) -> None:
        """There is something to do."""
        self._work.set()

    def stop(self) -> None:
        """End it after the event under way. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            finalize.not_at_end(self.stop)
            self._stopping = True
            self._work.set()
            thread.join()

    def check(self) -> None:
        """Raises StateError, from the thread's error, if it has failed. Once."""
        error, self._error = self._error, None
        if error is not None:
            self.stop()
            raise StateError(f"the communication thread has ended: {error}") from error

    def _until(self, nap: float) -> float:
        """A nap, but for what is to come earlier."""
        known = self._next_event()
        return nap if not known else min(nap, known)

    def _run(self) -> None:
        nap = _SHORTEST
        try:
            while not self._stopping:
                self._work.clear()
                busy = self._event() or self._work.wait(self._until(nap))
                nap = _SHORTEST if busy else max(_SHORTEST, min(2 * nap, self._longest_nap()))
        except BaseException as error:
            self._error = error
