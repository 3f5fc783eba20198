# SPDX-License-Identifier: Apache-2.0
"""What all processes have in common: a model, gradient steps, and averages over all ranks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, TypeVar, Union

import numpy as np

from .._errors import StateError
from ._exchange import Array, Steps, drive
from ._total import Total

LearningRate = Union[float, Callable[[int], float]]
P = TypeVar("P", bound="Process")


@dataclass
class Counts:
    """What a process has done so far, on this rank.

    ``steps`` gradient steps; ``communications`` that this rank began and that went through
    (averagings, messages, rounds); ``received`` deltas or messages of others; ``skipped``
    communications (the peer had too much uncollected, or was not there yet); ``exposed_s``
    seconds that the training thread spent on anything but its own update.
    """

    steps: int = 0
    communications: int = 0
    received: int = 0
    skipped: int = 0
    exposed_s: float = 0.0


def check_model(argument: str, x: Any) -> Array:
    """A flat vector of float32 or float64."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{argument}: expected a numpy array, got {type(x).__name__}")
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"{argument}: expected float32 or float64, got {x.dtype}")
    if x.ndim != 1 or x.size == 0:
        raise ValueError(
            f"{argument}: expected one dimension and some elements, got shape {x.shape}"
        )
    return x


def check_count(argument: str, value: Any) -> int:
    """A whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{argument}: expected a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{argument}: expected at least 1, got {value}")
    return int(value)


def check_number(argument: str, value: Any, least: float, most: float = math.inf) -> float:
    """A finite number in a range."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{argument}: expected a number, got {value!r}")
    if not least <= value <= most or math.isinf(value):
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{argument}: expected at least {least:g}{upper}, got {value}")
    return float(value)


class Process:
    """One rank of an optimisation process on a flat vector. See the subclasses.

    Parameters
    ----------
    x : numpy array
        The first model, float32 or float64, one dimension; copied. The same on all ranks, or
        made so by `synchronise`.
    learning_rate : float or callable
        What `step` multiplies gradients by, or a function of the number of steps so far.
    total : Total or None
        For what is collective: `averaged_model`, `synchronise`, `consensus_distance`.

    In a with-statement the process is started, and freed at the end.
    """

    def __init__(
        self, x: Array, *, learning_rate: LearningRate = 0.1, total: Total | None = None
    ) -> None:
        self._x = check_model("x", x).copy()
        if not callable(learning_rate):
            check_number("learning_rate", learning_rate, 0)
        self._learning_rate = learning_rate
        self._total = total
        self._counts = Counts()
        self._scratch: Array | None = None  # for `step`, once it has been called
        self._freed = False

    # Training

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
        """One gradient step, with the gradient at `model`: `apply` of -learning_rate·gradient."""
        self._check_update("gradient", gradient)
        if self._scratch is None:
            self._scratch = np.empty_like(self._x)
        self.apply(np.multiply(gradient, -self.learning_rate, out=self._scratch))

    def apply(self, update: Array) -> None:
        """One step with a finished update: what any optimizer wants to add to `model`.

        The vector can be used again when it returns. Raises StateError if the communication
        thread has failed.
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
        self._x += update
        yield from self._advancing()

    def advancing_in_place(self) -> Steps[None]:
        """`apply_in_place` as a generator."""
        self._check_usable()
        yield from self._advancing()

    def _advancing(self) -> Steps[None]:
        """What follows when x has its update."""
        raise NotImplementedError

    def _check_usable(self) -> None:
        if self._freed:
            raise StateError("the process has been freed")

    def _check_update(self, argument: str, update: Any) -> None:
        self._check_usable()
        if not isinstance(update, np.ndarray):
            raise TypeError(f"{argument}: expected a numpy array, got {type(update).__name__}")
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

    # Averages over all ranks

    def _mass(self) -> tuple[Array, float]:
        """Vector and weight of this rank; the average is the sum of vectors over that of weights,
        and no communication changes either."""
        return self._settled(), 1.0

    def _settled(self) -> Array:
        """This rank's model after `_settle`."""
        return self._x

    def _reset(self, model: Array) -> None:
        """From now on this is the model; nothing from before is to have an effect."""
        np.copyto(self._x, model)

    def _collective(self) -> Total:
        self._check_usable()
        if self._total is None:
            raise StateError("total: expected Total.over(comm) for what is collective, got None")
        return self._total

    def _gathering(self, total: Total) -> Steps[None]:
        """Wait for the other ranks, if they may need this one as long as they make steps."""
        yield from ()

    def _averaging(self, total: Total) -> Steps[Array]:
        """At rest. The first meeting: everything that was sent has come."""
        yield from self._completing()
        yield from total.meeting()
        self._settle()
        vector, weight = self._mass()
        summed = yield from total.summing(np.append(np.asarray(vector, np.float64), weight))
        model: Array = (summed[:-1] / summed[-1]).astype(self._x.dtype)
        return model

    def averaged_model(self) -> Array:
        """The average of all ranks' models, exactly: with all that is under way. Collective."""
        total = self._collective()
        drive(self._gathering(total))
        with self._at_rest():
            return drive(self._averaging(total))

    def replacing(self, change: Callable[[Array], Array]) -> Steps[Array]:
        """Generator: every rank's model becomes `change` of the exact average. Collective."""
        total = self._collective()
        yield from self._gathering(total)
        with self._at_rest():
            model = change((yield from self._averaging(total)))
            self._reset(model)
            yield from total.meeting()  # before that nobody may see another's old model
        return model

    def synchronise(self) -> None:
        """Every rank's model becomes the exact average. Collective. Once before the training
        and once after it is what the gossip processes need."""
        drive(self.replacing(lambda model: model))

    def begin_anew(self, model: Array) -> None:
        """This rank's model becomes this one, and nothing from before has an effect. Collective:
        every rank gives one."""
        drive(self.replacing(lambda mean: model))

    def consensus_distance(self) -> float:
        """The square root of mean_i |x_i - mean|^2 over the ranks' models. Collective."""
        return drive(self.measuring())

    def measuring(self) -> Steps[float]:
        """Generator of `consensus_distance`."""
        total = self._collective()
        x = np.array(self.model, np.float64)
        summed = yield from total.summing(np.append(x, 1.0))
        x -= summed[:-1] / summed[-1]
        squares = yield from total.summing(np.array([x @ x]))
        return math.sqrt(float(squares[0]) / float(summed[-1]))

    # State, the end

    @property
    def stats(self) -> Counts:
        """A copy of the counts."""
        return Counts(**vars(self._counts))

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here, as copies. Local.

        For a checkpoint of all ranks that belongs together, `synchronise` before.
        """
        with self._at_rest():
            self._settle()
            return {
                "model": self._settled().copy(),
                "steps": self._counts.steps,
                **self._more_state(),
            }

    def state_of_model(self) -> dict[str, Any]:
        """As `state_dict`, of a process that begins anew with `model`: right after `synchronise`
        a state that belongs together, even if others have gone on since. Local."""
        return {"model": self.model.copy(), "steps": self._counts.steps, **self._new_state()}

    def _new_state(self) -> dict[str, Any]:
        """`_more_state` of one that begins with `model`."""
        return self._more_state()

    def begin_at(self, steps: int) -> None:
        """Count steps from here, as another rank does: boundaries are where its are. Local."""
        self._counts.steps = check_count("steps", steps) if steps else 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Local. KeyError, TypeError or ValueError if it does not fit; the
        process is then as it was."""
        needed = {"model", "steps", *self._more_state()}
        if set(state) != needed:
            raise KeyError(f"state: expected {sorted(needed)}, got {sorted(state)}")
        self._check_update("state['model']", state["model"])
        for name, value in self._more_state().items():
            if isinstance(value, np.ndarray):
                self._check_update(f"state[{name!r}]", state[name])
        with self._at_rest():
            self._settle()
            self._reset(state["model"])
            self._counts.steps = int(state["steps"])
            self._load_more(state)

    def _more_state(self) -> dict[str, Any]:
        return {}

    def _load_more(self, state: Mapping[str, Any]) -> None:
        pass

    def Free(self) -> None:
        """Stop, and free what the process has made itself: not the buffers and handles that it
        was given. Idempotent."""
        self.stop()
        self._freed = True

    def __enter__(self: P) -> P:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.Free()
        except StateError:
            if kind is None:  # else the thread's error would hide this one
                raise
