# SPDX-License-Identifier: Apache-2.0
"""The course of a run: when it ends for each rank, the copies that ranks keep of their parameters,
and what follows from these copies afterwards. Nothing is sent or evaluated while time counts.

Where ranks have models of their own, all of them copy after equal numbers of steps. For each such
number the distance from the mean, the loss of the mean and the loss of one rank's own model are
computed. A rank that is much slower may never have made so many steps; its newest copy at that
moment counts.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...._core.mpi import MPI
from ..turns import meet
from .tasks import TrainingTask

# Of the time in which half of the ranks have made their steps, and seconds at least.
_MORE, _LEAST = 0.1, 1.0


def last_moment(times: list[float], ranks: int) -> float:
    """Return the seconds after which no rank begins another step, given the times at which some
    ranks had made their steps; infinity while these are too few."""
    half = (ranks + 1) // 2
    if len(times) < half:
        return math.inf
    passed = sorted(times)[half - 1]
    return passed + max(_MORE * passed, _LEAST)


class Ending:
    """Tell the ranks of each other's ends, by messages that nobody waits for. Collective; `comm` is
    dup'ed, `steps` are those that each rank is to make. Once half of the ranks have made them, the
    others have a tenth of that time more, at least a second, and end with the step that they are
    in. So ranks that differ by little make all of their steps, and a rank that is 100 times slower
    makes as many as it can while the others train."""

    def __init__(self, comm: MPI.Intracomm, steps: int) -> None:
        self._comm, self._steps = comm.Dup(), steps
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._room = np.zeros((comm.size, 1))
        self._open = {r: self._comm.Irecv(self._room[r], r) for r in self._others}
        self._begin = time.perf_counter()

    def begin(self) -> None:
        self._begin = time.perf_counter()

    def over(self, made: int) -> bool:
        """Return whether this rank, which has made `made` steps, must stop. Local."""
        if made >= self._steps:
            return True
        self._open = {rank: request for rank, request in self._open.items() if not request.Test()}
        times = [float(self._room[r, 0]) for r in self._others if r not in self._open]
        return time.perf_counter() - self._begin >= last_moment(times, self._comm.size)

    def close(self) -> None:
        now = np.array([time.perf_counter() - self._begin])
        self._sent = [(now, self._comm.Isend(now, rank)) for rank in self._others]

    def free(self) -> None:
        MPI.Request.Waitall([request for _, request in self._sent])
        MPI.Request.Waitall(list(self._open.values()))
        self._comm.Free()


Matrix = npt.NDArray[np.float64]

COPIES = 60  # in a run, about
_AT_ONCE = 1 << 22  # elements of copies that are averaged at once


class Copies:
    """Copies of this rank's parameters, one for each `every` steps. None are made before
    `begin`."""

    def __init__(self, model: torch.nn.Module, every: int) -> None:
        self._model, self._every = model, every
        self._begin = 0.0
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.flats: list[torch.Tensor] = []
        self.end: torch.Tensor | None = None

    def begin(self) -> None:
        self._begin = time.perf_counter()
        self.look(0)

    def look(self, step: int) -> None:
        if step % self._every == 0 and step not in self.steps[-1:]:
            self.steps.append(step)
            self.seconds.append(time.perf_counter() - self._begin)
            self.flats.append(self._flat())

    def finish(self) -> None:
        self.end = self._flat()

    def _flat(self) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(self._model.parameters()).detach()

    def at(self, step: int, seconds: float) -> torch.Tensor:
        """Return the parameters after `step` steps, or the newest at that moment if the rank never
        made so many."""
        if step in self.steps:
            return self.flats[self.steps.index(step)]
        earlier = [flat for flat, when in zip(self.flats, self.seconds) if when <= seconds]
        return earlier[-1] if earlier else self.flats[0]


def distances(comm: MPI.Intracomm, own: Matrix) -> tuple[Matrix, Matrix]:
    """Return the mean over ranks of each row, and the distance of the ranks from it: the square
    root of mean_i |x_i - mean|^2, for each row. Collective."""
    mean = np.empty_like(own)
    comm.Allreduce(own, mean)
    mean /= comm.size
    squares = np.square(own - mean).sum(axis=1)
    comm.Allreduce(MPI.IN_PLACE, squares)
    return mean, np.sqrt(squares / comm.size)


def final_distance(comm: MPI.Intracomm, copies: Copies) -> float:
    assert copies.end is not None
    return float(distances(comm, copies.end.double().numpy()[None])[1][0])


class Evaluation:
    """Held-out loss and accuracy of parameters, in a model separate from the one that is
    trained."""

    def __init__(self, task: TrainingTask) -> None:
        self._task, self._trained = task, task.model
        self._model = copy.deepcopy(task.model)
        self.loss: list[float] = []
        self.accuracy: list[float | None] = []

    def add(self, flat: torch.Tensor) -> None:
        self._task.model = self._model
        try:
            torch.nn.utils.vector_to_parameters(flat, self._model.parameters())
            loss, accuracy = self._task.held_out()
        finally:
            self._task.model = self._trained
        self.loss.append(round(loss, 6))
        self.accuracy.append(None if accuracy is None else round(accuracy, 6))


def replicas_course(
    comm: MPI.Intracomm, copies: Copies, task: TrainingTask, observer: int
) -> dict[str, Any]:
    """Return the course where all ranks have the same parameters, from the observer's copies, on
    all ranks. Collective."""
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
    comm: MPI.Intracomm, copies: Copies, task: TrainingTask, observer: int
) -> dict[str, Any]:
    """Return the course where each rank has a model of its own, on all ranks. Time, steps and the
    model that stands for all are the observer's. Collective."""
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
