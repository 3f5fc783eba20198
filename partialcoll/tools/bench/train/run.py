# SPDX-License-Identifier: Apache-2.0
"""Training with each strategy, on the same ranks one after the other. A run is one strategy with
one seed, on one topology where the strategy has one. Curves are made afterwards, from copies that
ranks keep of their parameters: nothing is evaluated while time counts.

Sources: Li et al., PPoPP 2020, section 6.2; Lian et al., ICML 2018, section 5.4 (one slow worker).
"""

from __future__ import annotations

import copy
import math
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .... import torch as pct
from ...._core.mpi import MPI
from ....round import Result
from ....torch.rounds import hash_tensors
from ... import report
from ..turns import meet
from . import plots, replaced, strategies
from .delays import STEPS, Waits, drawn, durations, limit, meeting_limit
from .strategies import STRATEGIES
from .tasks import TASKS, TrainingTask

# Extra time: a fraction of the time in which half of the ranks made their steps; least seconds.
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
    """Tell the ranks which ranks have ended, by messages that no rank waits for. Collective; `comm`
    is dup'ed, `steps` is the number of steps of each rank. Once half of the ranks have made them,
    the others get a tenth of that time more, at least a second, and end after their current step.
    So ranks that differ by little make all of their steps, and a rank that is 100 times slower
    makes as many as it can while the others train."""

    def __init__(self, comm: MPI.Intracomm, steps: int) -> None:
        self._comm, self._steps = comm.Dup(), steps
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._room = np.zeros((comm.size, 1))
        self._open = {r: self._comm.Irecv(self._room[r], r) for r in self._others}
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


class Copies:
    """Copies of this rank's parameters, one for each `every` steps. None are made before `begin`.
    All ranks copy after equal numbers of steps; for each such number the distance from the mean,
    the loss of the mean and of one rank's own model are computed afterwards."""

    def __init__(self, model: torch.nn.Module, every: int) -> None:
        self._model, self._every = model, every
        self._begin = 0.0
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.flats: list[torch.Tensor] = []
        self.end = torch.empty(0)

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
        """Return the parameters after `step` steps, else the newest ones of that moment."""
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


def evaluate(
    task: TrainingTask, flats: Iterable[torch.Tensor]
) -> tuple[list[float], list[float | None]]:
    """Return held-out loss and accuracy of each vector; the task's model does not change."""
    task = copy.copy(task)
    task.model = copy.deepcopy(task.model)
    losses: list[float] = []
    accuracies: list[float | None] = []
    for flat in flats:
        torch.nn.utils.vector_to_parameters(flat, task.model.parameters())
        loss, accuracy = task.held_out()
        losses.append(round(loss, 6))
        accuracies.append(accuracy and round(accuracy, 6))
    return losses, accuracies


def course_of(
    comm: MPI.Intracomm, copies: Copies, task: TrainingTask, observer: int
) -> dict[str, Any]:
    """Return the course of a run, on all ranks. Time and steps are the observer's. Collective."""
    steps, seconds = comm.bcast((copies.steps, copies.seconds), observer)
    flats = [copies.at(*point) for point in zip(steps, seconds)]
    apart = [distances(comm, flat.double().numpy()[None]) for flat in flats]
    consensus = [round(float(distance[0]), 9) for _, distance in apart]
    found: dict[str, Any] = {}
    if comm.rank == observer:
        mean = evaluate(task, (torch.from_numpy(mean[0]).to(flats[0].dtype) for mean, _ in apart))
        own = evaluate(task, flats) if any(consensus) else mean
        found.update(rounds=steps, seconds=[round(each, 4) for each in seconds])
        found.update(loss=mean[0], accuracy=mean[1], own_loss=own[0], own_accuracy=own[1])
        found.update(consensus=consensus)
    meet(comm)
    found = comm.bcast(found, observer)
    return found


def identical(everybody: list[tuple[dict[int, str], str]]) -> bool:
    """Return whether the ranks' hashes, by round and of the end, are equal."""
    seen: dict[int, str] = {}
    same = len({end for _, end in everybody}) == 1
    for prints, _ in everybody:
        same &= all(seen.setdefault(index, found) == found for index, found in prints.items())
    return same


class TrainingRun:
    """One strategy with one seed, on this rank."""

    def __init__(
        self,
        options: SimpleNamespace,
        comm: MPI.Intracomm,
        task: TrainingTask,
        name: str,
        topology: str | None,
        seed: int,
    ) -> None:
        self._options, self._comm, self._task = options, comm, task
        self.name, self.seed = name, seed
        self._choice = STRATEGIES[name]
        self.strategy = strategies.make(name, options, topology)
        self._observer = comm.size - 1  # not rank 0, which may be slow
        self.seconds = 0.0
        self._prints: dict[int, str] = {}
        task.start(seed)
        torch.autograd.backward(task.loss(0))  # what torch does only once, before time counts
        self._opt = self._wrap()
        self._copies = Copies(task.model, self._every())
        self.steps = 0

    def _every(self) -> int:
        """Return the steps between two copies: fewer on a slow rank, in about the same time."""
        every = max(1, self._task.steps // COPIES)
        if self._choice.replicas:
            return every
        return max(1, int(every / self._options.pattern.times(self._comm.rank)))

    def _wrap(self) -> Any:
        task = self._task
        task.model.zero_grad()
        replicas = self._choice.replicas
        opt = pct.DistributedOptimizer(
            task.optimizer(),
            task.model.named_parameters(),
            strategy=self.strategy,
            on_round=self._on_round if replicas else None,
            on_step=None if replicas else lambda opt: self._copies.look(opt.round),
        )
        opt.attach(torch.optim.lr_scheduler.LambdaLR(opt, lambda done: task.rate(done)))
        return opt

    def _on_round(self, result: Result) -> None:
        if (result.index + 1) % self._options.check_every == 0:
            self._prints[result.index] = hash_tensors(self._task.model.parameters()).hex()
        self._copies.look(result.index + 1)

    def train(self) -> None:
        """Train to the last round, or until this rank must stop. Collective."""
        options, comm, task = self._options, self._comm, self._task
        pattern, delay = options.pattern, options.delay_ms / 1e3
        alone = not self._choice.replicas and self._choice.waits is Waits.NOBODY
        ending = Ending(comm, task.steps) if alone else None
        meet(comm)
        begin = time.perf_counter()
        self._copies.begin()
        if pattern.kills:
            after = pattern.lifetimes(self.seed, comm.size)[comm.rank]
            death = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
            if after < math.inf:
                death.start()
        for made in self._opt.until(task.steps):
            if ending is not None and ending.over(made):
                break
            turn = time.perf_counter()
            self._opt.zero_grad()
            torch.autograd.backward(task.loss(self.steps))
            # Sleep for the rest of a slower machine's compute time, plus the delay of a late rank.
            compute = task.compute(options.compute_ms / 1e3, self.seed, self.steps, comm.rank)
            compute = max(compute, time.perf_counter() - turn) * pattern.times(comm.rank)
            compute += float(pattern.delays(self.seed, self.steps, comm.size, delay)[comm.rank])
            time.sleep(max(0.0, turn + compute - time.perf_counter()))
            self._opt.step()
            self.steps += 1
        self.seconds = time.perf_counter() - begin
        self._copies.finish()
        if ending is not None:
            ending.close()
        self._opt.join()
        if pattern.kills:
            death.cancel()
            self._comm = comm.Shrink()  # type: ignore[assignment]
            self._observer = self._comm.size - 1
        if ending is not None:
            ending.free()

    def results(self) -> tuple[report.Row, dict[str, Any]]:
        comm, task, metrics = self._comm, self._task, self._opt.metrics()
        replicas, both = self._choice.replicas, self._choice.both
        sent = metrics.rounds if replicas else both * metrics.communications
        mine = (self.steps, self.seconds, metrics.included, metrics.wait_s, sent)
        steps, seconds, included, wait, sents = zip(*comm.allgather(mine))
        end_print = hash_tensors(task.model.parameters()).hex()
        same = identical(comm.allgather((self._prints, end_print)))
        course = course_of(comm, self._copies, task, self._observer)
        consensus = float(distances(comm, self._copies.end.double().numpy()[None])[1][0])
        # Loss and accuracy of the final model of all ranks.
        end = task.held_out() if comm.rank == self._observer else None
        meet(comm)
        loss, accuracy = comm.bcast(end, self._observer)
        rates = [count / each for count, each in zip(steps, seconds)]
        row = {
            "strategy": self.name,
            "topology": getattr(self.strategy, "topology", None),
            "steps_per_s": float(torch.tensor(rates, dtype=torch.float64).quantile(0.5)),
            "speedup_vs_allreduce": None,
            "limit": None if comm.rank else bound(self._options, task, self.name, self.strategy),
            "final_loss": loss,
            "accuracy": accuracy,
            "consensus": consensus,
            "communications": sum(sents) / comm.size,
            "included_ratio": sum(included) / sum(steps),
            "wait_s": sum(wait) / len(wait),
            "replicas_identical": same,
            "seed": self.seed,
        }
        run = {
            "strategy": self.name,
            "topology": row["topology"],
            "seed": self.seed,
            "course": course,
            "steps": steps,
            "seconds": seconds,
            "wait_s": wait,
            "mean_active": metrics.mean_active if replicas else None,
            "failed": list(metrics.failed),
        }
        self._opt.close()
        return row, run


def compare(rows: list[report.Row]) -> None:
    base = {row["seed"]: row["steps_per_s"] for row in rows if row["strategy"] == "allreduce"}
    for row in rows:
        if row["seed"] in base:
            row["speedup_vs_allreduce"] = row["steps_per_s"] / base[row["seed"]]


def bound(options: SimpleNamespace, task: TrainingTask, name: str, strategy: Any) -> float | None:
    """Return the limit by arithmetic; None if nothing is known of the time of a step."""
    if not options.compute_ms:
        return None
    waits, ranks = STRATEGIES[name].waits, task.ranks
    compute = task.compute_cases(options.compute_ms / 1e3)
    delay = options.delay_ms / 1e3
    if isinstance(waits, Waits):
        return limit(waits, durations(options.pattern, ranks, compute, delay))
    return meeting_limit(
        waits(strategy, ranks), drawn(options.pattern, ranks, compute, delay, STEPS)
    )


def run(
    options: SimpleNamespace, comm: MPI.Intracomm
) -> tuple[list[report.Row], list[dict[str, Any]], TrainingTask]:
    """Run all strategies with all seeds; return rows, data of pictures, and task. Collective."""
    torch.set_num_threads(1)
    pct.init(comm)
    task = TASKS[options.task](options, comm.rank, comm.size)
    seeds = range(options.seed, options.seed + options.seeds)
    todo = [
        (name, topology, seed)
        for seed in seeds
        for name in options.strategies
        for topology in strategies.topologies(name, options.topology)
    ]
    rows, runs = [], []
    for each in report.progress(todo, comm.rank == 0, f"train {options.task}"):
        one = TrainingRun(options, comm, task, *each)
        one.train()
        row, details = one.results()
        rows.append(row)
        runs.append(details)
    pct.shutdown()
    compare(rows)
    return rows, runs, task


def summary(rows: list[report.Row]) -> list[report.Row]:
    together: dict[tuple[str, str | None], list[report.Row]] = {}
    for row in rows:
        together.setdefault((row["strategy"], row["topology"]), []).append(row)
    means = (report.combined(same, statistics.fmean)[0] for same in together.values())
    return [{**mean, "seed": "mean"} for mean in means]


def settings(options: SimpleNamespace, task: TrainingTask) -> dict[str, Any]:
    names = "task data compute_ms delay_ms length_scale history topology rate local_steps grid"
    return {
        **{name: getattr(options, name) for name in names.split()},
        "steps": task.steps,
        "batch": task.per_rank * task.ranks,
        "size": task.size,
        "learning_rate": task.learning_rate,
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "pattern": str(options.pattern),
        "torch": torch.__version__,
    }


def main(options: SimpleNamespace) -> None:
    if options.respawn:
        replaced.main(options)
    comm = MPI.COMM_WORLD
    rows, runs, task = run(options, comm)
    if comm.rank:
        return
    doc = report.document("bench train", comm.size, rows)
    doc.update(settings=settings(options, task), runs=runs)
    shown = rows if options.seeds == 1 else [*rows, *summary(rows)]
    report.write(options.json, doc, shown)
    if options.plot:
        plots.plot(doc, options.plot)
    if options.plot_consensus:
        plots.plot_consensus(doc, options.plot_consensus)
