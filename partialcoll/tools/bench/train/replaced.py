# SPDX-License-Identifier: Apache-2.0
"""Training in which one rank is killed each S seconds and another process takes its place, once it
has loaded what it needs: steps per second beside those of the same job before anybody died.

At first nobody dies. The first of the ranks lives, which keeps the count; any other may die. Where
newcomers still load when all steps are made, there are more steps until they are there.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import torch

from .... import torch as pct
from ....torch import world
from ....torch.rounds import hash_tensors
from ... import report
from . import strategies
from .tasks import TASKS

COMMIT = 10  # steps from one commit to the next


class RespawnCourse:
    """Times that rank 0 measures by its clock, and the next rank to die, which it broadcasts."""

    def __init__(self, options: SimpleNamespace) -> None:
        self._every, self.ranks = options.pattern.factor, pct.size()
        self._random = random.Random(options.seed)
        self.moments = [time.monotonic()]  # begin, begin of the second part, end
        self.kills = self.replaced = self.with_fewer = 0
        self.pauses: list[float] = []  # seconds in which training stood still, for a new world
        self._size = self.ranks
        self.paused = self._due = 0.0  # when the commit began that may take in other ranks
        self.death: threading.Timer | None = None

    def turn(self) -> None:
        self._due = time.monotonic()
        self.moments.append(self._due)
        self.draw()

    def draw(self) -> None:
        if pct.size() < self.ranks:
            return
        self._due += self._every
        after = max(0.0, self._due - time.monotonic())
        victim, after = pct.broadcast_object((self._random.randrange(1, pct.size()), after))
        if victim == pct.rank():
            self.death = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
            self.death.daemon = True
            self.death.start()

    def go_on(self) -> None:
        if self.paused:
            self.pauses.append(time.monotonic() - self.paused)
            self.kills += max(0, self._size - pct.size())
            self.replaced += max(0, pct.size() - self._size)
        self.paused, self._size = 0.0, pct.size()

    def goes_on(self) -> bool:
        """Return whether joining ranks are still being started. The same on all ranks."""
        replacing = world.world().replacing
        return replacing is not None and replacing.spawned is not None


def train(options: SimpleNamespace) -> report.Row:
    pct.init(on_failure="continue", respawn="overlap")
    name, seed = options.strategies[0], options.seed
    task = TASKS[options.task](options, pct.rank(), pct.size())
    task.start(seed)
    strategy = strategies.make(name, options, None)
    opt = pct.DistributedOptimizer(task.optimizer(), strategy=strategy)
    state: Any = pct.elastic.TorchState(task.model, opt, step=0)
    course, compute = RespawnCourse(options), options.compute_ms / 1e3

    @pct.elastic.run
    def steps(state: Any) -> None:
        course.go_on()
        task.rank = pct.rank()
        if task.steps < state.step < 2 * task.steps:
            course.draw()
        while state.step < 2 * task.steps or course.goes_on():
            begin = time.perf_counter()
            if state.step == task.steps:
                course.turn()
            opt.zero_grad()
            torch.autograd.backward(task.loss(state.step))
            time.sleep(max(0.0, begin + compute - time.perf_counter()))
            opt.step()
            state.step += 1
            course.with_fewer += pct.size() < course.ranks
            if state.step % COMMIT == 0:
                course.paused = time.monotonic()
                if name != "allreduce":  # else nothing is under way
                    opt.join()
                state.commit()
                course.paused = 0.0

    steps(state)
    course.moments.append(time.monotonic())
    if course.death is not None:
        course.death.cancel()
    prints = pct.allgather_object(hash_tensors(task.model.parameters()).hex())
    begin, turn, end = course.moments if len(course.moments) == 3 else (0.0, 1.0, 2.0)
    made = state.step - task.steps
    none, rate = task.steps / (turn - begin), made / (end - turn)
    return {
        "strategy": name,
        "pattern": str(options.pattern),
        "ranks": pct.size(),
        "steps_per_s": rate,
        "steps_per_s_none": none,
        "part_of_none": rate / none,
        "part_with_fewer": course.with_fewer / made,
        "kills": course.kills,
        "replaced": course.replaced,
        "pause_s": sum(course.pauses) / max(1, len(course.pauses)),
        "replicas_identical": len(set(prints)) == 1,
        "final_loss": task.held_out()[0],
    }


def main(options: SimpleNamespace) -> None:
    torch.set_num_threads(1)
    row = train(options)
    if not pct.rank():
        doc = report.document("bench train", pct.size(), [row])
        settings = {name: getattr(options, name) for name in ("task", "compute_ms", "steps")}
        doc["settings"] = {**settings, "pattern": row["pattern"], "respawn": True}
        report.write(options.json, doc)
    pct.allgather_object(None)
    sys.exit(0)
