# SPDX-License-Identifier: Apache-2.0
"""One step of a decentralized strategy: the inner optimizer steps on this rank's own parameters
with its own gradient, and then the process averages them with those of other ranks.

The parameters are views of the process's model (`ParameterVector`), so the update is whatever the
optimizer changes. Between two steps only the program writes them: the communication thread has its
own vectors, whose averages are added at the end of a step.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from .._core import timeline, waiting
from .._core.buffers import Array
from .._core.mpi import MPI
from .._core.settings import logger
from ..codec import Lattice
from ..collectives.adasum import Bounds, adasum
from ..collectives.agreement import together
from ..collectives.gossip import GossipStats
from ..collectives.resync import Replica
from ..collectives.state_exchange import StateExchange
from ..decentralized import LocalStrategy, MoshpitProcess, PeriodicJoin, Process, Setup, Strategy
from ..decentralized.decoupled import Threaded
from ..decentralized.process import Steps, is_finite
from ..errors import StateError
from . import checkpoint
from .flat import Gradients, Layout, Named, ParameterVector, Views
from .loop import Loop, clip
from .metrics import LocalMetrics
from .strategies import Allreduce


class LocalLoop(Loop):
    """The loop of the strategies whose ranks have models of their own."""

    strategy: LocalStrategy

    def _set_up(self) -> None:
        self._last_rate = 1.0
        self._together = True  # whether all ranks have joined since the last step
        self._metrics = LocalMetrics()  # rounds: own steps with a gradient
        self._warned = False  # about a codec with too few bits
        self._warned_of_gradient = False
        self._layout = Layout([parameter for _, parameter in self.parameters])
        self._flat = ParameterVector(self.parameters)
        own = self._flat.vector()
        total = self._total()
        how: Any = {"learning_rate": self._learning_rate, "total": total}
        try:
            built = self.strategy.build(own, self.comm, **how)
        except BaseException:  # on all ranks or on none
            total.Free()
            self.comm.Free()
            raise
        self.process, self._join_hook, self._owned = built.process, built.join, built.owned
        self.groups = self.process if isinstance(self.process, MoshpitProcess) else None
        if isinstance(self.process, (MoshpitProcess, Threaded)):  # others cannot fall behind
            states = StateExchange(self.comm)
            self._owned.append(states)
            self.process.share_state(states, Replica(self._capture, self._restore))
            total.meanwhile(self.process.serve)
        self._model = self.process.lend()
        self._flat.move_to(self._model)
        self.process.average_models()
        self._flat.scatter()
        # For a later `broadcast_parameters`: the parameters before and after the first average.
        first = self._flat.vector()
        self._before = None if np.array_equal(own, first) else (own, first)
        slot = Views(self._layout, self._layout.new())
        refusal = self.settings.sparse_refusal(self.strategy)
        self.gradients = Gradients(self.settings, self.parameters, slot, self._metrics, refusal)
        self.process.start()

    def _learning_rate(self, steps: int) -> float:
        """Return the rate of the first group, or its last one above 0: SlowMo divides by it."""
        rate = float(self._inner.param_groups[0]["lr"])
        if rate > 0:
            self._last_rate = rate
        return self._last_rate

    # One step

    def step(self, scale: float | None, overflown: bool) -> None:
        self._check_open()
        waiting.look()
        self._flat.bring_back()
        self._gather()
        self._begin()
        finite = not overflown and self._scale(1.0 if scale is None else 1 / scale)
        if finite:
            if self.settings.clip_norm is not None:
                clip(self.gradients.flats, self.settings.clip_norm)
            self.gradients.hide(self.gradients.used)
            self._inner_step()
            self._metrics.rounds += 1
        else:
            self._metrics.skipped += 1
            if not overflown and not self._warned_of_gradient:  # once
                logger.warning(
                    "the gradient of this rank is not finite, and is left out; further ones are "
                    "counted (metrics().skipped)"
                )
                self._warned_of_gradient = True
        self._flat.gather()
        self._check_model()
        self._metrics.steps += 1
        self._together, self._before = False, None
        begin = time.monotonic()
        self._join_hook.before(self.version + 1)
        self.process.apply_in_place()
        self._join_hook.after()
        self._flat.scatter()
        stats = self.process.exchange_stats
        if not self._warned and stats is not None:
            self._warned = warn_of_fallbacks(stats, self._model.size)
        self._metrics.wait_s += time.monotonic() - begin
        if timeline.recorder is not None:
            self._record(("EXCHANGE", begin))
        self.gradients.restart(self.gradients.slot)
        if finite:
            self._step_schedulers()
        elif not overflown:
            self._raise_if_wanted()

    def _check_model(self) -> None:
        """Raise FloatingPointError for parameters that are not finite."""
        if self.settings.non_finite == "propagate" or is_finite(self._model):
            return
        raise FloatingPointError(
            "the parameters of this rank are not finite any more, though its gradients were: look "
            "at the learning rate, the optimizer and what else changes them; nothing of them was "
            "sent"
        )

    def _begin(self) -> None:
        """Start the communication that does not need the gradient."""
        self.process.start()  # raises each time, if it has failed
        self.process.begin()
        self._join_hook.begin()

    version = property(lambda self: self.process.stats.steps)  # own, also the empty ones of a join
    updates = property(lambda self: self._metrics.rounds)

    @property
    def metrics(self) -> LocalMetrics:
        found, counts = self._metrics, self.process.stats
        found.included = found.steps - found.skipped
        found.refused = counts.skipped
        same = ("communications", "received", "resyncs", "asked", "achieved", "backlog", "given_up")
        vars(found).update({name: getattr(counts, name) for name in same})
        if self.strategy.on_failure == "continue" and not self.closed:
            found.failed = self._total().failed
        found.fallbacks = getattr(self.process.exchange_stats, "fallbacks", 0)
        return found

    # Between steps

    def zero_grad(self) -> None:
        """Collect gradients from zero, and start the communication that does not need them."""
        self._check_open()
        self._flat.bring_back()
        self._check_model()  # D-PSGD sends the model now
        super().zero_grad()
        self._begin()

    def _take_changes(self) -> None:
        self._flat.gather()
        self._check_model()
        self.process.hand_over_changes()
        self._flat.scatter()

    def _join(self) -> None:
        self._take_changes()
        self._join_hook.join(self.process)
        self.process.average_models()
        self._flat.scatter()
        self._together = True

    def leave(self) -> None:
        assert self.groups is not None
        self._check_between("leave()")
        self._take_changes()
        self.groups.leave()
        self._flat.scatter()

    def rejoin(self, timeout: float | None) -> None:
        assert self.groups is not None
        self._check_between("rejoin()")
        self._flat.bring_back()
        self.groups.rejoin(timeout)

    # Averages over all ranks

    def _mean_vector(self) -> Any:
        mean = self.process.averaged_model()
        self._flat.scatter()
        return mean

    def parameters_replaced(self) -> None:
        """Begin the process again from the parameters. Collective."""
        self.process.begin_anew(self._flat.vector())
        self.process.average_models()  # parameters that were not replaced
        self._flat.scatter()
        self._before = None

    def parameters_to_be_replaced(self) -> None:
        """Undo the first average, if it was the last: the root may have loaded a checkpoint."""
        if self._before is not None and np.array_equal(self._flat.vector(), self._before[1]):
            self._flat.assign(self._before[0])

    # The replica, for a peer that needs it and for checkpoints

    def _capture(self) -> dict[str, Any]:
        """Return what the process's state lacks; it has the parameters."""
        state = checkpoint.capture([], self._inner, self._attached())
        return {**state, "updates": self.updates}

    def _restore(self, state: dict[str, Any]) -> None:
        self._flat.scatter()
        checkpoint.restore(state, [], self._inner, self._attached())
        self._metrics.rounds = state["updates"]

    def begin_at(self, position: dict[str, Any]) -> None:
        """Set the counts to those of another rank. Keep the strategy's own momentum."""
        self.process.begin_at(position["version"])
        self._metrics.rounds = position["updates"]
        self._load_schedulers(position["schedulers"])

    def state_dict(self) -> dict[str, Any]:
        self._check_between("state_dict()")
        if not (self.strategy.rests or self._together):
            raise StateError(
                f"state_dict(): with {type(self.strategy).__name__} averages are under way between "
                "steps; save right after join()"
            )
        if self.strategy.rests:
            self._take_changes()
            state = self.process.state_dict()
        else:  # drop what others have sent since
            self._flat.gather()
            state = self.process.state_of_model()
        entry = {
            "size": self.comm.size,
            "rank": self.comm.rank,
            "strategy": self.strategy.describe(self.comm.size),
            "layout": self._layout.digest(),
            "process": checkpoint.map_tree(state, np.ndarray, torch.from_numpy),
            **self.position(),
        }
        return {**self._inner.state_dict(), checkpoint.KEY: entry}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the optimizer's state and this strategy's. Collective if averages are in progress:
        no rank may average before all have loaded."""
        saved = state.get(checkpoint.KEY)
        if saved is None:
            self._check_between("load_state_dict()")
            checkpoint.load_optimizer(self._inner, state)
        elif self.strategy.rests:
            self._check_loading(saved)
            self._load(state, saved)
        else:
            self._total().meet()  # warns about missing ranks
            together(self.comm, lambda: self._check_loading(saved))
            self.process.stop()
            self._total().meet()
            together(self.comm, lambda: self._load(state, saved))
            self.process.start()  # answers other ranks until the next call

    def _load(self, state: dict[str, Any], saved: dict[str, Any]) -> None:
        self._flat.bring_back()
        own = checkpoint.map_tree(saved["process"], torch.Tensor, lambda one: one.cpu().numpy())
        self.process.load_state_dict(own)
        self._flat.scatter()
        checkpoint.load_optimizer(self._inner, state)
        self._load_schedulers(saved["schedulers"])
        self._metrics.rounds, self._together, self._before = saved["updates"], True, None

    def _check_loading(self, saved: Any) -> None:
        self._check_between("load_state_dict()")
        who, attached = (self.comm.rank, self.comm.size), self._attached()
        checkpoint.check_own(saved, *who, attached, self._layout, "process")
        here = self.strategy.describe(self.comm.size)
        if saved["strategy"] != here:
            raise ValueError(f"state_dict: it is of {saved['strategy']}, expected one of {here}")

    def _free(self) -> None:
        try:
            self.process.complete()
            self._join_hook.complete()
            self.process.Free()
        finally:
            self._total().meanwhile(None)
            self._flat.release()
            with contextlib.ExitStack() as ending:  # free each, even if others raise
                for owned in reversed(self._owned):
                    ending.callback(owned.Free)


def warn_of_fallbacks(stats: GossipStats, elements: int) -> bool:
    """Warn if a codec has too few bits: half of all blocks had to be read twice."""
    blocks = stats.reads * -(-elements // Lattice.BLOCK)
    if stats.reads < 32 or 2 * stats.fallbacks < blocks:
        return False
    logger.warning(
        "the codec has too few bits for the distances between models: %d of %d blocks were read "
        "again with more; give it more, or let the ranks average more often",
        stats.fallbacks,
        blocks,
    )
    return True


# DistributedOptimizer(op=Adasum): each rank's optimizer makes its own step, and the changes of each
# parameter are combined over the ranks (Maleki et al., MLSys 2021, section 4).


class AdasumProcess(Process):
    """A model that is the same on all ranks, to the bit, and this rank's change of it in a step."""

    def __init__(self, x: Array, comm: MPI.Intracomm, bounds: Bounds, **common: Any) -> None:
        super().__init__(x, **common)
        self._comm, self._bounds, self._before = comm, bounds, self._x.copy()

    def _advancing(self) -> Steps[None]:
        self._counts.steps += 1
        change = self._x - self._before
        with self._exposed():
            for request in adasum(self._comm, change, self._bounds):
                request.Wait()  # all ranks are in this step
        yield from ()
        self._before += change
        np.copyto(self._x, self._before)
        self._counts.communications += 1

    def _reset(self, model: Array) -> None:
        super()._reset(model)
        np.copyto(self._before, model)


@dataclass(frozen=True)
class AdasumStrategy(LocalStrategy):
    """The strategy of ``op=Adasum``. bounds: of the parameters in the model's vector."""

    bounds: Bounds = field(repr=False)
    clip_norm: float | None = None

    threaded: ClassVar[bool] = False

    @classmethod
    def in_place_of(cls, given: Strategy, parameters: Named) -> AdasumStrategy:
        """Return the strategy for these parameters. ValueError if another one was given."""
        if not isinstance(given, Allreduce):
            name = type(given).__name__
            raise ValueError(f"op: Adasum is a strategy of its own, expected none, got {name}")
        if given.on_failure != "raise":
            raise ValueError(
                f"op: Adasum needs all ranks, expected on_failure='raise', got {given.on_failure!r}"
            )
        places = ParameterVector(parameters).layout.places
        return cls([(place.begin, place.end) for place in places], given.clip_norm)

    def build(self, x: Array, comm: MPI.Intracomm, **common: Any) -> Setup:
        """Create the process: ranks that have joined take part in each step without a change."""
        process = AdasumProcess(x, comm, self.bounds, **common)
        return Setup(process, PeriodicJoin(common["total"], 1, comm.size))
