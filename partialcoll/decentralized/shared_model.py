# SPDX-License-Identifier: Apache-2.0
"""Between the training thread and the communication thread: updates one way, models the other.

The communication thread owns the model x. The training thread computes at a view of its own,
which nobody changes under it. Under one short lock:

- `_waiting` is written by the training thread (`add`) and taken by the communication thread
  (`take`), which leaves a zeroed vector in its place;
- `_taken` is what it took: in x, but not in a snapshot that the training thread can see;
- `_shown` is the newest snapshot of x, swapped in by the communication thread (`show`).

Invariant: every update is in exactly one of `_waiting`, `_taken` and `_shown`. So shown + taken +
waiting is the newest model with all of this rank's own updates in it, and that is what the view
is. No copy of x is made under the lock; the training thread's additions are.

A view that was lent is changed in place. `_before`, the training thread's alone, is what the view
was after the last addition: the difference is the update, which the view has already.
"""

from __future__ import annotations

import threading

import numpy as np

from ..errors import StateError
from .exchange import Array


class SharedModel:
    """Made with the first model; holds five vectors of its size."""

    def __init__(self, x: Array) -> None:
        self._lock = threading.Lock()
        self._view = x.copy()
        self._shown = x.copy()
        self._next = x.copy()  # the communication thread's alone, until `show` swaps it in
        self._waiting = np.zeros_like(x)
        self._taken = np.zeros_like(x)
        self._any_waiting = self._any_taken = self._is_new = False
        self._before: Array | None = None

    @property
    def view(self) -> Array:
        """The model that the training thread computes at."""
        return self._view

    def lend(self) -> None:
        """Training thread: the view will be changed in place."""
        if self._before is None:
            self._before = self._view.copy()

    def add(self, update: Array) -> None:
        """Training thread: an update is finished. The view then has it, and what is new of x."""
        with self._lock:
            if not self._hand_over(update):
                self._view += update
        self._note_view()

    def has_changed(self) -> bool:
        """Training thread: has the view, lent, been changed in place since the last addition?"""
        return self._before is not None and not np.array_equal(self._view, self._before)

    def add_what_changed(self) -> None:
        """Training thread: as `add`, of what the view, lent, was changed by since the last time."""
        if self._before is None:
            raise StateError("apply_in_place: the model has not been lent")
        update = np.subtract(self._view, self._before, out=self._before)
        with self._lock:
            self._hand_over(update)
        self._note_view()

    def _hand_over(self, update: Array) -> bool:
        """Under the lock. Was there something new of x? Then it is in the view, as all updates."""
        self._waiting += update
        self._any_waiting = True
        if not self._is_new:
            return False
        self._is_new = False
        np.add(self._shown, self._waiting, out=self._view)
        if self._any_taken:
            self._view += self._taken
        return True

    def _note_view(self) -> None:
        if self._before is not None:
            np.copyto(self._before, self._view)

    def take(self) -> Array | None:
        """Communication thread: the updates since the last time, to be added to x now; None if
        there are none. Good until `show`, which has to follow."""
        with self._lock:
            if not self._any_waiting:
                return None
            self._waiting, self._taken = self._taken, self._waiting
            self._any_waiting, self._any_taken = False, True
        return self._taken

    def show(self, x: Array) -> None:
        """Communication thread: x is the newest model."""
        np.copyto(self._next, x)
        with self._lock:
            self._shown, self._next = self._next, self._shown
            self._is_new = True
            taken, self._any_taken = self._any_taken, False
        if taken:
            self._taken.fill(0)

    def reset(self, x: Array) -> None:
        """Both threads at rest: forget everything, begin with x."""
        with self._lock:
            for vector in (self._view, self._shown):
                np.copyto(vector, x)
            self._waiting.fill(0)
            self._taken.fill(0)
            self._any_waiting = self._any_taken = self._is_new = False
        self._note_view()
