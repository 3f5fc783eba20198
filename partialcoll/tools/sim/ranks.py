# SPDX-License-Identifier: Apache-2.0
"""Simulated ranks: the training thread and the communication thread of a process, in virtual time,
and what they optimize: each rank its own part of a sum whose minimum is known.

The unit of time is the mean gradient step of an ordinary rank.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from ...decentralized.process import Process, Steps
from .simulated import Events

Floats = NDArray[np.float64]


class SimulatedTask:
    """The mean over the ranks of f_i, which are 0 here."""

    first: Floats  # (ranks, dim): the models to begin with
    optimum: Floats | None = None
    least: float | None = None  # the mean of the f_i at the optimum

    def gradient(self, rank: int, x: Any, random: np.random.Generator) -> Floats:
        return np.zeros(len(x))

    def loss(self, x: Any) -> float | None:
        """Return the mean of all f_i at x; None if there is nothing to optimize."""
        return None


class Consensus(SimulatedTask):
    """Ranks begin apart, N(0, 1) in each coordinate, and only have to agree."""

    def __init__(self, ranks: int, dim: int, noise: float, random: np.random.Generator) -> None:
        self.first = random.standard_normal((ranks, dim))


class Quadratic(SimulatedTask):
    """f_i(x) = sum_k a_ik (x_k - b_ik)^2 / 2 with a from 0.2 to 1 and b ~ N(0, 1), each rank its
    own; gradients have noise N(0, noise^2) in each coordinate. All begin at 0."""

    def __init__(self, ranks: int, dim: int, noise: float, random: np.random.Generator) -> None:
        self.first = np.zeros((ranks, dim))
        self._a = random.uniform(0.2, 1.0, (ranks, dim))
        self._b = random.standard_normal((ranks, dim))
        self._noise = noise
        self.optimum = (self._a * self._b).sum(axis=0) / self._a.sum(axis=0)
        self.least = self.loss(self.optimum)

    def gradient(self, rank: int, x: Any, random: np.random.Generator) -> Floats:
        exact: Floats = self._a[rank] * (x - self._b[rank])
        return exact + self._noise * random.standard_normal(len(x)) if self._noise else exact

    def loss(self, x: Any) -> float:
        return float(0.5 * np.mean(np.sum(self._a * (x - self._b) ** 2, axis=1)))


class Logistic(SimulatedTask):
    """Logistic regression, regularized: each rank has 64 samples, their classes and centers
    different from rank to rank; gradients are of 8 drawn samples (all of them without noise).
    All begin at 0."""

    SAMPLES, BATCH, RIDGE = 64, 8, 1e-2

    def __init__(self, ranks: int, dim: int, noise: float, random: np.random.Generator) -> None:
        self.first = np.zeros((ranks, dim))
        center = 0.5 * random.standard_normal((ranks, 1, dim))
        self._inputs = center + random.standard_normal((ranks, self.SAMPLES, dim))
        truth = random.standard_normal(dim) / np.sqrt(dim)
        shift = 0.5 * random.standard_normal((ranks, 1))
        odds = self._inputs @ truth * 2 + shift
        self._signs = np.where(random.random(odds.shape) < 1 / (1 + np.exp(-odds)), 1.0, -1.0)
        self._whole = noise == 0
        self.optimum = self._newton(dim)
        self.least = self.loss(self.optimum)

    @staticmethod
    def _slope(margins: Floats) -> Floats:
        """Return minus the derivative of log(1 + exp(-margin))."""
        result: Floats = 0.5 * (1 - np.tanh(margins / 2))
        return result

    def gradient(self, rank: int, x: Any, random: np.random.Generator) -> Floats:
        inputs, signs = self._inputs[rank], self._signs[rank]
        if not self._whole:
            batch = random.integers(self.SAMPLES, size=self.BATCH)
            inputs, signs = inputs[batch], signs[batch]
        weights = signs * self._slope(signs * (inputs @ x))
        return np.asarray(self.RIDGE * x - weights @ inputs / len(signs), np.float64)

    def loss(self, x: Any) -> float:
        margins = self._signs * (self._inputs @ x)
        return float(np.mean(np.logaddexp(0, -margins)) + 0.5 * self.RIDGE * (x @ x))

    def _newton(self, dim: int) -> Floats:
        """Return the optimum by Newton's method, halving steps that do not descend."""
        x = np.zeros(dim)
        inputs, signs = self._inputs.reshape(-1, dim), self._signs.ravel()
        for _ in range(100):
            slope = self._slope(signs * (inputs @ x))
            gradient = self.RIDGE * x - (signs * slope) @ inputs / len(signs)
            if np.linalg.norm(gradient) < 1e-13:
                break
            curvature = (inputs.T * (slope * (1 - slope))) @ inputs / len(signs)
            step = np.linalg.solve(curvature + self.RIDGE * np.eye(dim), gradient)
            scale = 1.0
            while self.loss(x - scale * step) > self.loss(x) and scale > 1e-6:
                scale /= 2
            x = x - scale * step
        return x


TASKS: dict[str, Any] = {"consensus": Consensus, "quadratic": Quadratic, "logistic": Logistic}


# The communication thread looks again after this time when there was nothing to do, or somebody
# else has something for it.
NAP = 0.01


class SimulatedRank:
    """One rank that takes gradient steps without end. The process is not started: its communication
    events are called for here. `step_time` draws how long the next gradient takes, `transfer` how
    long a communication event takes."""

    def __init__(
        self,
        rank: int,
        process: Process,
        task: SimulatedTask,
        events: Events,
        step_time: Callable[[], float],
        transfer: Callable[[], float],
        random: np.random.Generator,
    ) -> None:
        self.process = process
        self._rank, self._task, self._events = rank, task, events
        self._step_time, self._transfer, self._random = step_time, transfer, random
        self._looks = False  # the communication thread is going to look,
        self._look_at = 0.0  # then
        self._still = (0.0, 0.0)

    def start(self, delay: float) -> None:
        self._events.after(delay, self._begin)

    def stand_still(self, begin: float, end: float) -> None:
        self._still = (begin, end)

    def _put_off(self, action: Callable[[], None]) -> bool:
        """Return whether this rank is suspended; if so, run the action afterwards."""
        begin, end = self._still
        still = begin <= self._events.now < end
        if still:
            self._events.after(end - self._events.now, action)
        return still

    def _begin(self) -> None:
        self._events.after(self._step_time(), self._finish)

    def _finish(self) -> None:
        if self._put_off(self._finish):
            return
        gradient = self._task.gradient(self._rank, self.process.model, self._random)
        update = (-self.process.learning_rate * gradient).astype(self.process.model.dtype)
        self._advance(self.process.advancing(update))

    def _advance(self, steps: Steps[None]) -> None:
        """Run to the next wait, and continue when what it waits for is complete."""
        try:
            awaited = next(steps)
        except StopIteration:
            self.look()
            self._begin()
            return
        awaited.then(lambda: self._advance(steps))  # type: ignore[attr-defined]

    def look(self) -> None:
        """Let the communication thread run soon, as there may be work for it."""
        self._look_after(NAP)

    def _look_after(self, delay: float) -> None:
        at = self._events.now + delay
        if not self._looks or at < self._look_at:
            self._looks, self._look_at = True, at
            self._events.after(delay, self._communicate)

    def _communicate(self) -> None:
        if not self._looks or self._events.now < self._look_at:
            return  # somebody has looked meanwhile
        if self._put_off(self._communicate):
            return
        self._looks = False
        did = self.process.communicate()
        due = self.process.next_event()
        if due is not None:
            self._look_after(due + (self._transfer() if did else 0) or NAP)
