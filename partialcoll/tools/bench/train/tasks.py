# SPDX-License-Identifier: Apache-2.0
"""The tasks of `bench train`: hyperplane, digits, sequences. Each is deterministic: data and
held-out samples are always the same; the seed determines the initial model and the samples that a
rank draws in a step.

No task has BatchNorm, so ranks share parameters only.

Sources: Li et al., PPoPP 2020, sections 2.1 and 6.2.1, table 1 (hyperplane; the lengths of UCF101's
videos); the digits are scikit-learn's (UCI, "Optical Recognition of Handwritten Digits").
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ....errors import Error

_DATA = 0x5EED  # of the data, which are the same with every seed


class TrainingTask:
    """A model, made by `start`, and its samples, of which a rank draws some in each step. `steps`,
    `batch` (samples of all ranks together) and `size` (of the model) are what to take where the
    user does not say."""

    steps, batch, size, learning_rate = 100, 256, 16, 0.1
    make: Callable[[], nn.Module]  # by torch's generator
    loss: Callable[[int], Tensor]  # the mean of this rank's samples of a step
    held_out: Callable[[], tuple[float, float | None]]  # loss, accuracy (0 to 1, or None)

    def __init__(self, options: SimpleNamespace, rank: int, ranks: int) -> None:
        self.steps = options.steps or self.steps
        self.size = options.size or self.size
        self.learning_rate = options.learning_rate or self.learning_rate
        self.rank, self.ranks = rank, ranks
        self.per_rank = (options.batch or self.batch) // ranks
        if not self.per_rank:
            raise Error(
                f"--batch: expected at least one sample a rank, {ranks}; got {options.batch}"
            )
        self.seed = 0
        self.model: nn.Module = nn.Identity()

    def start(self, seed: int) -> None:
        """Begin again: the seed determines the model, the same on all ranks."""
        self.seed = seed
        torch.manual_seed(seed)
        self.model = self.make()

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=self.learning_rate)

    def rate(self, done: int) -> float:
        """Return the part of the learning rate: down to 1 % in a straight line."""
        return max(0.01, 1 - done / self.steps)

    def compute(self, least: float, seed: int, step: int, rank: int) -> float:
        """Return the least seconds of this step on this rank; `least`: of the quickest step."""
        return least

    def compute_cases(self, least: float) -> npt.NDArray[np.float64]:
        """Return `compute` of all ranks in equally likely steps, shape (n, ranks). No rank is
        slower than another by chance."""
        return np.full((1, self.ranks), least)


class Hyperplane(TrainingTask):
    """y = a·x + noise in `size` dimensions, learned by a one-layer perceptron with the squared
    error. The paper's: 8192 dimensions, 32768 points, 2048 samples in a step.

    x is normal, a such that a·x has variance 1; the noise has 1/4 of it, so that no model has a
    loss below 0.25. Each rank holds an equal part of the points.
    """

    steps, batch, size, learning_rate = 128, 2048, 8192, 0.05
    POINTS, HELD_OUT, NOISE = 32768, 1024, 0.5

    def __init__(self, options: SimpleNamespace, rank: int, ranks: int) -> None:
        super().__init__(options, rank, ranks)
        self.points = max(self.per_rank, self.POINTS // ranks)
        random = np.random.default_rng((_DATA, self.size))
        self.plane = random.standard_normal(self.size) / math.sqrt(self.size)
        self.x, self.y = self._points(rank, self.points)
        self._held_out: tuple[Tensor, Tensor] | None = None

    def _points(self, part: int, count: int) -> tuple[Tensor, Tensor]:
        random = np.random.default_rng((_DATA, self.size, part + 1))
        x = random.standard_normal((count, self.size), dtype=np.float32)
        y = x @ self.plane.astype(np.float32) + self.NOISE * random.standard_normal(count)
        return torch.from_numpy(x), torch.from_numpy(y.astype(np.float32))

    def make(self) -> nn.Module:
        return nn.Linear(self.size, 1)

    def loss(self, step: int) -> Tensor:
        """Return the loss of neighboring samples at a drawn place: they were drawn at random when
        they were made, and copying them would cost more than computing with them."""
        random = np.random.default_rng((self.seed, step, self.rank))
        first = int(random.integers(self.points - self.per_rank + 1))
        some = slice(first, first + self.per_rank)
        return nn.functional.mse_loss(self.model(self.x[some]).squeeze(1), self.y[some])

    def held_out(self) -> tuple[float, float | None]:
        if self._held_out is None:  # only one rank is asked
            self._held_out = self._points(-1, self.HELD_OUT)
        x, y = self._held_out
        with torch.no_grad():
            return float(nn.functional.mse_loss(self.model(x).squeeze(1), y)), None


class Classification(TrainingTask):
    """Tasks with logits for classes and the cross-entropy. Samples have numbers: `training` returns
    those of this rank in a step, `test` the held-out ones, in portions."""

    logits: Callable[[Any], tuple[Tensor, Tensor]]  # of some samples, and their classes
    training: Callable[[int], npt.NDArray[np.int64]]
    test: Callable[[], list[npt.NDArray[np.int64]]]

    def loss(self, step: int) -> Tensor:
        return nn.functional.cross_entropy(*self.logits(self.training(step)))

    def held_out(self) -> tuple[float, float | None]:
        loss, right, count = 0.0, 0, 0
        with torch.no_grad():
            for which in self.test():
                logits, labels = self.logits(which)
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
                right += int((logits.argmax(1) == labels).sum())
                count += len(labels)
        return loss / count, right / count


class Digits(Classification):
    """scikit-learn's 1797 images of 8 by 8, a fifth of them held out; a small convolutional network
    whose first layer has `size` channels.

    Ranks draw from all images, or with ``--data sorted`` each from a part of its own, of one or two
    digits where there are many ranks.
    """

    steps, batch, size, learning_rate = 200, 256, 16, 0.4

    def __init__(self, options: SimpleNamespace, rank: int, ranks: int) -> None:
        super().__init__(options, rank, ranks)
        from sklearn.datasets import load_digits

        data: Any = load_digits()
        self.images = torch.tensor(data.images / 16 - 0.3, dtype=torch.float32)[:, None]
        self.labels = torch.tensor(data.target, dtype=torch.int64)
        order = np.random.default_rng(_DATA).permutation(len(self.labels))
        self._test, self._train = np.split(order, [len(order) // 5])
        if options.data == "sorted":
            by_class = self._train[np.argsort(data.target[self._train], kind="stable")]
            self._train = np.array_split(by_class, ranks)[rank]

    def make(self) -> nn.Module:
        c = self.size
        return nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c, 2 * c, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * c * 16, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def logits(self, which: Any) -> tuple[Tensor, Tensor]:
        return self.model(self.images[which]), self.labels[which]

    def training(self, step: int) -> npt.NDArray[np.int64]:
        random = np.random.default_rng((self.seed, step, self.rank))
        return self._train[random.integers(len(self._train), size=self.per_rank)]

    def test(self) -> list[npt.NDArray[np.int64]]:
        return [self._test]


# Frames of UCF101's videos as the paper gives them: least, median, greatest, standard deviation.
SHORTEST, MEDIAN, LONGEST, DEVIATION = 29, 167, 1776, 97


def video_lengths(count: int) -> npt.NDArray[np.int64]:
    """Return the frames of `count` videos, distributed as UCF101's are, in rising order.

    Equally spaced quantiles of the log-normal distribution with the paper's median and standard
    deviation s, cut to its range. With w = exp(sigma^2), s = median · sqrt(w (w-1)).
    """
    w = (1 + math.sqrt(1 + 4 * (DEVIATION / MEDIAN) ** 2)) / 2
    normal = statistics.NormalDist(math.log(MEDIAN), math.sqrt(math.log(w)))
    values = [math.exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count)]
    return np.clip(np.rint(values), SHORTEST, LONGEST).astype(np.int64)


class Sequences(Classification):
    """An LSTM of `size` units that tells which of 8 motions a video shows, made-up ones of 8
    features a frame, as long as UCF101's times `--length-scale`, and noisy.

    As usual with lengths that vary, a batch is made of videos of similar length; which, is drawn
    for each step and rank. A step takes as long as its batch is.
    """

    steps, batch, size, learning_rate = 200, 128, 32, 0.02
    VIDEOS, CLASSES, FEATURES, NOISE = 2048, 8, 8, 0.5

    def __init__(self, options: SimpleNamespace, rank: int, ranks: int) -> None:
        super().__init__(options, rank, ranks)
        random = np.random.default_rng(_DATA)
        frames = video_lengths(self.VIDEOS)
        self.lengths = np.maximum(2, np.rint(frames * options.length_scale)).astype(np.int64)
        self.labels = random.integers(self.CLASSES, size=self.VIDEOS)
        self.angles = random.uniform(0, 2 * math.pi, (self.CLASSES, self.FEATURES))
        self.speeds = random.uniform(0.2, 1.0, (self.CLASSES, self.FEATURES))
        # Every fifth is held out; the others in groups of similar length, a batch each.
        number = np.arange(self.VIDEOS)
        train, self._test = number[number % 5 != 0], number[number % 5 == 0]
        self.per_rank = min(self.per_rank, len(train))
        whole = len(train) // self.per_rank * self.per_rank
        self.groups = train[:whole].reshape(-1, self.per_rank)
        longest = frames[self.groups].max(axis=1)
        self.weights = longest / SHORTEST  # how long a group's step takes

    def make(self) -> nn.Module:
        lstm = nn.LSTM(self.FEATURES, self.size, batch_first=True)
        return nn.ModuleDict({"lstm": lstm, "out": nn.Linear(self.size, self.CLASSES)})

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=self.learning_rate)

    def _frames(self, number: int) -> npt.NDArray[np.float32]:
        """Return a video: waves of its class from a drawn moment, and noise."""
        random = np.random.default_rng((_DATA, number))
        label, length = self.labels[number], self.lengths[number]
        time = random.uniform(0, 10) + np.arange(length)[:, None]
        waves = np.sin(self.angles[label] + self.speeds[label] * time)
        noise = self.NOISE * random.standard_normal(waves.shape)
        return np.asarray(waves + noise, dtype=np.float32)

    def logits(self, which: Any) -> tuple[Tensor, Tensor]:
        lengths = self.lengths[which]
        x = np.zeros((len(which), int(lengths.max()), self.FEATURES), np.float32)
        for row, number in zip(x, which):
            row[: self.lengths[number]] = self._frames(int(number))
        model: Any = self.model
        states, _ = model["lstm"](torch.from_numpy(x))
        last = states[torch.arange(len(x)), torch.from_numpy(lengths) - 1]
        return model["out"](last), torch.from_numpy(self.labels[which])

    def _group(self, seed: int, step: int, rank: int) -> int:
        return int(np.random.default_rng((seed, step, rank, 1)).integers(len(self.groups)))

    def training(self, step: int) -> npt.NDArray[np.int64]:
        return np.asarray(self.groups[self._group(self.seed, step, self.rank)])

    def test(self) -> list[npt.NDArray[np.int64]]:
        return np.array_split(self._test, 8)

    def compute(self, least: float, seed: int, step: int, rank: int) -> float:
        return float(least * self.weights[self._group(seed, step, rank)])

    def compute_cases(self, least: float) -> npt.NDArray[np.float64]:
        """Return the seconds of many steps, each with the ranks in several rotations."""
        drawn = [
            [self.compute(least, 0, step, rank) for rank in range(self.ranks)]
            for step in range(256)
        ]
        rotations = range(0, self.ranks, -(-self.ranks // 16))  # of many ranks not all: memory
        return np.concatenate([np.roll(drawn, k, axis=1) for k in rotations])


TASKS: dict[str, type[TrainingTask]] = {
    "hyperplane": Hyperplane,
    "digits": Digits,
    "sequences": Sequences,
}
