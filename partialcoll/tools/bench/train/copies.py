# SPDX-License-Identifier: Apache-2.0
"""The course of a run: copies that ranks keep of their parameters, and what follows from them
afterwards. While time counts nothing is sent and nothing is evaluated.

Where ranks have models of their own, all of them copy after equal numbers of steps, and their
distance from the mean, the mean's loss and that of one rank's own model are looked at for each such
number; of a rank that was never there, since it is much slower, counts what it had at that moment.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...._core.mpi import MPI
from ..turns import meet
from .tasks import Task

Matrix = npt.NDArray[np.float64]

COPIES = 60  # in a run, about
_AT_ONCE = 1 << 22  # elements of copies that are averaged at once


class Copies:
    """Of this rank's parameters, `every` so many steps. Before `begin`, none are made."""

    def __init__(self, model: torch.nn.Module, every: int) -> None:
        self._model, self._every = model, every
        self._begin = 0.0
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.flats: list[torch.Tensor] = []
        self.end: torch.Tensor | None = None

    def begin(self) -> None:
        """Time counts from now."""
        self._begin = time.perf_counter()
        self.look(0)

    def look(self, step: int) -> None:
        """So many steps have been made."""
        if step % self._every == 0 and step not in self.steps[-1:]:
            self.steps.append(step)
            self.seconds.append(time.perf_counter() - self._begin)
            self.flats.append(self._flat())

    def finish(self) -> None:
        """Training is over for this rank."""
        self.end = self._flat()

    def _flat(self) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(self._model.parameters()).detach()

    def at(self, step: int, seconds: float) -> torch.Tensor:
        """What this rank had after so many steps; if it was never there, the newest then."""
        if step in self.steps:
            return self.flats[self.steps.index(step)]
        earlier = [flat for flat, when in zip(self.flats, self.seconds) if when <= seconds]
        return earlier[-1] if earlier else self.flats[0]


def distances(comm: MPI.Intracomm, own: Matrix) -> tuple[Matrix, Matrix]:
    """The mean over ranks of each row, and how far the ranks are from it: the square root of
    mean_i |x_i - mean|^2, for each row. Collective."""
    mean = np.empty_like(own)
    comm.Allreduce(own, mean)
    mean /= comm.size
    squares = np.square(own - mean).sum(axis=1)
    comm.Allreduce(MPI.IN_PLACE, squares)
    return mean, np.sqrt(squares / comm.size)


def final_distance(comm: MPI.Intracomm, copies: Copies) -> float:
    """How far from their mean the ranks were when each of them had ended. Collective."""
    assert copies.end is not None
    return float(distances(comm, copies.end.double().numpy()[None])[1][0])


class Evaluation:
    """Held-out loss and accuracy of parameters, in a model apart from the one that is trained."""

    def __init__(self, task: Task) -> None:
        self._task, self._trained = task, task.model
        self._model = copy.deepcopy(task.model)
        self.loss: list[float] = []
        self.accuracy: list[float | None] = []

    def add(self, flat: torch.Tensor) -> None:
        """The next point of the course."""
        self._task.model = self._model
        try:
            torch.nn.utils.vector_to_parameters(flat, self._model.parameters())
            loss, accuracy = self._task.held_out()
        finally:
            self._task.model = self._trained
        self.loss.append(round(loss, 6))
        self.accuracy.append(None if accuracy is None else round(accuracy, 6))


def replicas_course(
    comm: MPI.Intracomm, copies: Copies, task: Task, observer: int
) -> dict[str, Any]:
    """Where one rank's copies are everybody's. On all ranks, from the observer. Collective."""
    course: dict[str, Any] = {}
    if comm.rank == observer:
        seen = Evaluation(task)
        for flat in copies.flats:
            seen.add(flat)
        course = _course(copies.steps, copies.seconds, [0.0] * len(seen.loss), seen, seen)
    meet(comm)
    found: dict[str, Any] = comm.bcast(course, observer)
    return found


def own_models_course(
    comm: MPI.Intracomm, copies: Copies, task: Task, observer: int
) -> dict[str, Any]:
    """Where each rank has a model of its own: time and steps are the observer's, and its own model
    is the one that stands for all. On all ranks. Collective."""
    steps, seconds = comm.bcast((copies.steps, copies.seconds), observer)
    flats = [copies.at(*point) for point in zip(steps, seconds)]
    other = (observer - 1) % comm.size  # evaluates the means, at the same time
    own, mean, consensus = Evaluation(task), Evaluation(task), []
    portion = max(1, _AT_ONCE // max(1, flats[0].numel()))
    for first in range(0, len(flats), portion):
        some = flats[first : first + portion]
        means, distance = distances(comm, torch.stack(some).double().numpy())
        consensus += [round(float(d), 9) for d in distance]
        for flat in some if comm.rank == observer else ():
            own.add(flat)
        for row in means if comm.rank == other else ():
            mean.add(torch.from_numpy(row).to(flats[0].dtype))
        meet(comm)
    mean.loss, mean.accuracy = comm.bcast((mean.loss, mean.accuracy), other)
    found: dict[str, Any] = comm.bcast(_course(steps, seconds, consensus, mean, own), observer)
    return found


def _course(
    steps: list[int],
    seconds: list[float],
    consensus: list[float],
    mean: Evaluation,
    own: Evaluation,
) -> dict[str, Any]:
    return {
        "rounds": steps,
        "seconds": [round(each, 4) for each in seconds],
        "loss": mean.loss,
        "accuracy": mean.accuracy,
        "own_loss": own.loss,
        "own_accuracy": own.accuracy,
        "consensus": consensus,
    }
