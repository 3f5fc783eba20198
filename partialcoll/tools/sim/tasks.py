# SPDX-License-Identifier: Apache-2.0
"""What simulated ranks optimize: each its own part of a sum whose minimum is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Task:
    """The mean over the ranks of f_i; here these are 0."""

    first: Floats  # (ranks, dim): the models to begin with
    optimum: Floats | None = None
    least: float | None = None  # the mean of the f_i at the optimum

    def gradient(self, rank: int, x: Any, random: np.random.Generator) -> Floats:
        """A stochastic gradient of f_rank."""
        return np.zeros(len(x))

    def loss(self, x: Any) -> float | None:
        """The mean of all f_i at x; None where there is nothing to optimize."""
        return None


class Consensus(Task):
    """Ranks begin apart, N(0, 1) in each coordinate, and are to agree: nothing else."""

    def __init__(self, ranks: int, dim: int, noise: float, random: np.random.Generator) -> None:
        self.first = random.standard_normal((ranks, dim))


class Quadratic(Task):
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
        """Exact plus noise."""
        exact: Floats = self._a[rank] * (x - self._b[rank])
        return exact + self._noise * random.standard_normal(len(x)) if self._noise else exact

    def loss(self, x: Any) -> float:
        return float(0.5 * np.mean(np.sum(self._a * (x - self._b) ** 2, axis=1)))


class Logistic(Task):
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
        """Minus the derivative of log(1 + exp(-margin))."""
        result: Floats = 0.5 * (1 - np.tanh(margins / 2))
        return result

    def gradient(self, rank: int, x: Any, random: np.random.Generator) -> Floats:
        """Of a drawn batch of this rank's samples."""
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
        """The optimum: Newton's method, halving steps that do not descend."""
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
