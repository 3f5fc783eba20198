# SPDX-License-Identifier: Apache-2.0
"""One rank's model: gradient steps, and the communication between them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, Union

import numpy as np

from .._core import checks
from .._core.settings import logger
from ..errors import StateError
from .exchange import Array, Steps, drive
from .global_sum import GlobalSum

LearningRate = Union[float, Callable[[int], float]]


@dataclass
class Counts:
    """What a process has done so far, on this rank.

    ``steps`` gradient steps; ``communications`` that this rank began and that went through
    (averagings, messages, rounds); ``received`` deltas or messages of others; ``skipped``
    communications (the peer had too much uncollected, or was not there yet); ``non_finite``
    updates that were left out; ``resyncs`` states of peers that it took since it had missed too
    many rounds; ``exposed_s`` seconds that the training thread spent on anything
    but its own update.

    Of those with a ``rate``: ``asked`` communications that the steps so far have called for on
    this rank, which begins half of the averagings that `rate` counts; ``achieved``, how many of
    these were made; ``backlog``, how many are still to come; ``given_up``, how many were dropped,
    since the backlog was full or the models were averaged exactly.
    """

    steps: int = 0
    communications: int = 0
    received: int = 0
    skipped: int = 0
    non_finite: int = 0
    resyncs: int = 0
    exposed_s: float = 0.0
    asked: int = 0
    achieved: int = 0
    backlog: int = 0
    given_up: int = 0


def is_finite(vector: Array) -> bool:
    """One pass of products; a second one only where their sum alone overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.dot(vector, vector)
    return math.isfinite(product) or bool(np.isfinite(vector).all())


def check_model(argument: str, given: Any) -> Array:
    """A flat vector of float32 or float64."""
    x: Array = checks.instance(argument, given, np.ndarray, "a numpy array")
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"{argument}: expected float32 or float64, got {x.dtype}")
    if x.ndim != 1 or x.size == 0:
        raise ValueError(
            f"{argument}: expected one dimension and some elements, got shape {x.shape}"
        )
    return x


class LocalModel:
    """What steps and communicates; the parameters are those of `Process`."""

    def __init__(
        self, x: Array, *, learning_rate: LearningRate = 0.1, total: GlobalSum | None = None
    ) -> None:
        self._x = check_model("x", x).copy()
        if not callable(learning_rate):
            checks.number("learning_rate", learning_rate, 0)
        self._learning_rate = learning_rate
        self._total = total
        self._counts = Counts()
        self._scratch: Array | None = None  # for `step`, once it has been called
        self._freed = False

    @property
    def model(self) -> Array:
        """What the next gradient is to be taken at. Nobody changes it until the next step, and
        you must not either, unless it was lent (`lend`)."""
        return self._x

    def lend(self) -> Array:
        """The model, always the same array, for somebody who changes it in place: an optimizer
        that knows no update vectors. From now on every change of it is an update, and
        `apply_in_place` is a step. Local; idempotent."""
        self._check_usable()
        return self.model

    @property
    def learning_rate(self) -> float:
        """For the next step."""
        if callable(self._learning_rate):
            return float(self._learning_rate(self._counts.steps))
        return float(self._learning_rate)

    def step(self, gradient: Array) -> None:
        """One gradient step, with the `gradient` at `model`, a vector like it: `apply` of
        -learning_rate·gradient. TypeError or ValueError if it is none."""
        self._check_update("gradient", gradient)
        if self._scratch is None:
            self._scratch = np.empty_like(self._x)
        self.apply(np.multiply(gradient, -self.learning_rate, out=self._scratch))

    def apply(self, update: Array) -> None:
        """One step with a finished `update`, a vector like `model`: what any optimizer wants to add
        to it. TypeError or ValueError if it is none.

        The vector can be used again when it returns. With NaN or infinities in it nothing of it is
        applied, so no other rank ever has them; the step counts, and ``stats.non_finite`` counts
        them. Raises StateError if the communication thread has failed.
        """
        drive(self.advancing(update))

    def apply_in_place(self) -> None:
        """One step with whatever was added to `model` since the last one; see `lend`."""
        drive(self.advancing_in_place())

    def hand_over_changes(self) -> None:
        """As `apply_in_place`, but not a step: what was added to the lent model counts as an
        update of this rank. Local."""
        self._check_usable()

    def complete(self) -> None:
        """End what `begin` has started, without a step. Collective."""
        drive(self._completing())

    def _completing(self) -> Steps[None]:
        yield from ()

    def begin(self) -> None:
        """The next gradient is about to be computed: what need not wait for it may start. Local;
        for most processes there is nothing to do."""

    def advancing(self, update: Array) -> Steps[None]:
        """`apply` as a generator that yields whatever it has to wait for; for those who go on
        with something else meanwhile, as the simulator does. `update` must stay as it is."""
        self._check_update("update", update)
        if self._takes(update):
            self._x += update
        yield from self._advancing()

    def advancing_in_place(self) -> Steps[None]:
        """`apply_in_place` as a generator."""
        self._check_usable()
        yield from self._advancing()

    def _advancing(self) -> Steps[None]:
        """What follows when x has its update."""
        raise NotImplementedError

    def _takes(self, update: Array) -> bool:
        """Is it finite? Else it is counted, and said once."""
        if is_finite(update):
            return True
        if not self._counts.non_finite:
            logger.warning(
                "an update of this rank is not finite, and is left out; further ones are counted "
                "(stats.non_finite)"
            )
        self._counts.non_finite += 1
        return False

    def _check_usable(self) -> None:
        if self._freed:
            raise StateError("the process has been freed")

    def _check_update(self, argument: str, update: Any) -> None:
        self._check_usable()
        checks.instance(argument, update, np.ndarray, "a numpy array")
        if update.shape != self._x.shape:
            raise ValueError(
                f"{argument}: expected shape {self._x.shape} as the model's, got {update.shape}"
            )
        if update.dtype != self._x.dtype:
            raise TypeError(
                f"{argument}: expected {self._x.dtype} as the model's, got {update.dtype}"
            )

    @contextlib.contextmanager
    def _exposed(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._counts.exposed_s += time.perf_counter() - begin

    # Communication

    def communicate(self) -> bool:
        """One communication event, which waits for nobody; False if there was nothing to do.

        The communication thread calls it in a loop; without one (`start`) call it yourself.
        Always False for processes that communicate within their steps.
        """
        return False

    def next_event(self) -> float | None:
        """Seconds until the next communication event that the steps so far have called for; None
        if there is none. Others may have something for this rank before that."""
        return None

    def start(self) -> None:
        """Start the communication thread, if the process has one. Local; idempotent."""

    def stop(self) -> None:
        """Stop the communication thread. Local; idempotent."""

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Within, this rank sends nothing of its own accord."""
        yield

    def _settle(self) -> None:
        """Take in everything that has come here, and every update."""
