# SPDX-License-Identifier: Apache-2.0
"""The base of all decentralized processes: a rank's model and its steps, exact averages over all
ranks, and the join of ranks that make different numbers of steps."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, ClassVar, Protocol, TypeVar, Union, cast

import numpy as np

from .._core import checks
from .._core.buffers import Array as Array
from .._core.device import as_device_buffer
from .._core.mirror import Twins, on_host
from .._core.mpi import MPI
from .._core.settings import logger
from ..collectives.allreduce import Allreduce_init
from ..collectives.gossip import GossipBuffer
from ..collectives.group import GroupAllreduce
from ..collectives.handle import AllreduceHandle
from ..collectives.schedule import Schedule
from ..errors import StateError

# The processes communicate through objects with the methods of these classes (the simulator passes
# its own), and do not use MPI themselves.
Exchange = GossipBuffer
GroupReduction = GroupAllreduce
Reduction = AllreduceHandle

T = TypeVar("T")


class PeerSource(Protocol):
    """Chooses the peer of the next averaging."""

    def next_peer(self) -> int | None:
        """Return a rank, or None for no peer this time."""


# A part of an algorithm, as a generator that yields each operation for which it has to wait. Under
# MPI `drive` waits for each at once; the simulator continues with another rank meanwhile.
Steps = Generator[Any, None, T]


def finish(reduction: Any) -> Steps[None]:
    """Wait for a reduction that an exception has interrupted: the other ranks have completed it."""
    if getattr(reduction, "_started", False):
        yield reduction


def drive(steps: Steps[T]) -> T:
    """Run the generator, wait for each operation that it yields, and return its result."""
    try:
        while True:
            next(steps).Wait()
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        steps.close()


# Sums and averages over all ranks for rare operations. They are computed in float64 whatever the
# model's dtype, rounded once, with the same bits on all ranks; piece by piece, so that a large
# model does not need several times its size in shared memory.

_PIECE = 1 << 16  # elements
_OURS = 2  # elements of a piece for the weight, and for whether vectors are wide


class GlobalSum:
    """The sum of vectors over all ranks, and their average. `reduction`: a full allreduce (SUM) of
    one float64 vector of three elements or more, a piece. Methods whose names end in -ing are
    generators that yield what they have to wait for (`drive`)."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction: Any = reduction
        # True while this rank waits for the others in a sum; it makes no steps meanwhile. Any
        # thread may read it; the value may be old.
        self.waiting = False

    @classmethod
    def over(cls, comm: MPI.Intracomm, on_failure: str = "raise") -> GlobalSum:
        """Create one over `comm`, dup'ed; `on_failure` as of `Allreduce_init`. Collective."""
        like = np.empty(_PIECE)
        options: Any = {"quorum": "full", "history": 1, "on_failure": on_failure}
        return cls(Allreduce_init(comm, None, None, like=like, **options))

    @property
    def failed(self) -> tuple[int, ...]:
        """The ranks that have died, as far as this rank knows. Local."""
        return tuple(np.flatnonzero(self._reduction.failed).tolist())

    def _reducing(self, parts: list[Array], *ours: float) -> Steps[tuple[Array, Array]]:
        """Return the sums over the ranks of the parts, one after the other, and of `ours`."""
        yield from finish(self._reduction)
        buffer, end = self._reduction.send_buffer, sum(part.size for part in parts)
        np.concatenate(parts, out=buffer[:end], casting="unsafe")
        buffer[end:] = 0
        buffer[buffer.size - len(ours) :] = ours
        self.waiting = True
        try:
            self._reduction.Start()
            yield self._reduction
        finally:
            self.waiting = False
        found = self._reduction.result
        return found[:end], found[found.size - len(ours) :]

    def pieces(self, vectors: Iterable[Any]) -> Iterator[list[Any]]:
        """Yield lists of parts of flat `vectors` (arrays or tensors), in their order; a list has
        the parts that are reduced together."""
        size = self._reduction.send_buffer.size - _OURS
        parts: list[Any] = []
        room = size
        for vector in vectors:
            while len(vector):
                parts.append(vector[:room])
                vector = vector[room:]
                room -= len(parts[-1])
                if not room:
                    yield parts
                    parts, room = [], size
        if parts:
            yield parts

    def summing(self, vector: Array) -> Steps[Array]:
        """Return the float64 sum of the ranks' vectors. Collective: every rank gives a flat
        `vector` of the same size."""
        result = np.array(vector, np.float64)
        for (part,) in self.pieces([result]):
            part[...], _ = yield from self._reducing([part])
        return result

    def averaging(
        self, vectors: Iterable[Array], weight: float = 1.0, *, wide: bool | None = None
    ) -> Steps[None]:
        """Replace each of these flat `vectors`, of float dtypes, in place by the average over the
        ranks: the sum of the vectors divided by the sum of the weights (`weight` is this rank's).
        Collective: the same sizes in the same order on all ranks.

        With weights of 1, elements that are equal on all ranks keep their bits. The sum of up to
        2^29 equal float32 is exact in float64; for `wide` vectors (None: float64) the differences
        from the mean are averaged as well.
        """
        for parts in self.pieces(vectors):
            own = any(part.itemsize > 4 for part in parts) if wide is None else wide
            total, (weights, any_wide) = yield from self._reducing(parts, weight, own)
            mean = total / weights
            if any_wide:
                with np.errstate(invalid="ignore"):  # an infinity's distance from itself
                    apart = [part - weight * whole for part, whole in _beside(parts, mean)]
                total, _ = yield from self._reducing(apart)
                mean += np.where(np.isfinite(mean), total / weights, 0)
            for part, found in _beside(parts, mean):
                part[...] = found

    def measuring(self, vector: Array) -> Steps[float]:
        """Return the square root of ``mean_i |x_i - mean|^2`` over the ranks' vectors; 0 if they
        are equal. Collective: every rank gives a flat `vector` of the same size."""
        mean = np.array(vector, np.float64)
        yield from self.averaging([mean], wide=vector.itemsize > 4)
        apart = vector - mean
        square = np.array([apart @ apart])
        yield from self.averaging([square], wide=False)
        return math.sqrt(square[0])

    def meeting(self) -> Steps[None]:
        """Wait until all ranks have come. Collective."""
        yield from self.summing(np.zeros(1))

    # These also take arrays on a device, and copy each to the host. All are collective.

    def sum(self, vector: Any) -> Array:
        """Return the float64 sum of the ranks' vectors; see `summing`."""
        with on_host([vector], written=False) as (host,):
            return drive(self.summing(host))

    def average(self, vectors: Iterable[Any], *, wide: bool | None = None) -> None:
        """Replace `vectors` by their averages over the ranks; see `averaging`."""
        with on_host(list(vectors), written=True) as host:
            drive(self.averaging(host, wide=wide))

    def distance(self, vector: Any) -> float:
        """Return the distance of the ranks' vectors from their mean; see `measuring`."""
        with on_host([vector], written=False) as (host,):
            return drive(self.measuring(host))

    def meet(self) -> None:
        """Wait until all ranks have come."""
        drive(self.meeting())

    def meanwhile(self, look: Callable[[], Any] | None) -> None:
        """Call `look()` now and then while this rank waits for others; None: no longer."""
        self._reduction._while_waiting = look

    def Free(self) -> None:
        """Free the allreduce below. Collective; idempotent."""
        self._reduction.Free()


def _beside(parts: list[Array], row: Array) -> Iterator[tuple[Array, Array]]:
    """Return each part with the section of the row at its place."""
    return zip(parts, np.split(row, np.cumsum([part.size for part in parts])[:-1]))


LearningRate = Union[float, Callable[[int], float]]


@dataclass
class Counts:
    """Counts of a process on this rank.

    ``steps``: gradient steps. ``communications``: averagings, messages or rounds that this rank
    began and completed. ``received``: deltas or messages of other ranks. ``skipped``:
    communications that were not made, because the peer had too many uncollected contributions or no
    model yet. ``non_finite``: updates that were left out. ``resyncs``: states of peers that this
    rank took because it had missed too many rounds. ``exposed_s``: seconds that the training thread
    spent on anything but its own update.

    For processes with a ``rate``: ``asked``: communications that the steps have asked for on this
    rank, which begins half of the averagings that `rate` counts. ``achieved``: those that were
    made. ``backlog``: those that are waiting. ``given_up``: those that were dropped, because the
    backlog was full or the models were averaged exactly."""

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
    """Return whether all elements are finite: by products, and again if their sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(np.dot(vector, vector)) or bool(np.isfinite(vector).all())


def check_model(argument: str, given: Any) -> Array:
    """Return the argument if it is a flat vector of float32 or float64; raise otherwise."""
    x: Array = checks.instance(argument, given, np.ndarray, "a numpy array")
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"{argument}: expected float32 or float64, got {x.dtype}")
    if x.ndim != 1 or x.size == 0:
        raise ValueError(
            f"{argument}: expected one dimension and some elements, got shape {x.shape}"
        )
    return x


def check_like(expected: str, buffer: Any, x: Array) -> None:
    """Raise ValueError, `expected` first, unless `buffer` is one vector like the model x."""
    one = isinstance(buffer, np.ndarray)
    if not one or (buffer.shape, buffer.dtype) != (x.shape, x.dtype):
        kind = f"shape {buffer.shape} of {buffer.dtype}" if one else f"{len(buffer)} buffers"
        raise ValueError(f"{expected} of shape {x.shape} of {x.dtype} as the model's, got {kind}")


P = TypeVar("P", bound="Process")


class NoOptions:
    """The options of a process without options."""

    def check_values(self) -> None: ...


class Process:
    """One rank of an optimization process on a flat vector. See the subclasses.

    `x`, a numpy array, is the first model: one dimension, float32 or float64. It is copied. Give
    the same model on all ranks, or call `average_models` first. `learning_rate`: the factor of
    gradients in `step`, or a function of the number of steps so far. `total`, a `GlobalSum` or
    None, is needed for the collective methods: `averaged_model`, `average_models`,
    `consensus_distance`. `options`: those of its strategy, by keyword (`options_type`).

    A with statement starts the process, and frees it at the end.
    """

    options_type: ClassVar[Any] = NoOptions
    """The strategy whose options it takes."""

    def __init__(
        self,
        x: Array,
        *,
        learning_rate: LearningRate = 0.1,
        total: GlobalSum | None = None,
        **options: Any,
    ) -> None:
        self._options = self.options_type(**options)
        self._options.check_values()
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
        """The model at which to compute the next gradient. It does not change until the next step.
        Do not change it, unless it was lent (`lend`)."""
        return self._x

    def lend(self) -> Array:
        """Return the model, always the same array, to be changed in place: for optimizers that do
        not produce update vectors. From now on every change of it is an update, and
        `apply_in_place` is a step. Local; idempotent."""
        self._check_usable()
        return self.model

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        rate = self._learning_rate
        return float(rate(self._counts.steps) if callable(rate) else rate)

    def step(self, gradient: Array) -> None:
        """Make one gradient step: `apply` -learning_rate·gradient. `gradient`: the gradient at
        `model`, with its shape and dtype; otherwise TypeError or ValueError."""
        self._check_update("gradient", gradient)
        if self._scratch is None:
            self._scratch = np.empty_like(self._x)
        self.apply(np.multiply(gradient, -self.learning_rate, out=self._scratch))

    def apply(self, update: Array) -> None:
        """Make one step: add `update`, which an optimizer has computed, to the model. `update` has
        the shape and dtype of `model`; otherwise TypeError or ValueError.

        The vector can be used again when this returns. An update with NaN or infinities is not
        applied, so that no other rank receives them; the step counts, and so does
        ``stats.non_finite``. Raises StateError if the communication thread has failed.
        """
        self._check_update("update", update)
        drive(self.advancing(update))

    def apply_in_place(self) -> None:
        """Make one step with the changes of a lent `model` since the last step; see `lend`."""
        drive(self.advancing())

    def hand_over_changes(self) -> None:
        """Count the changes of the lent model as an update of this rank, without a step. Local."""
        self._check_usable()

    def complete(self) -> None:
        """Complete what `begin` has started, without a step. Collective."""
        drive(self._completing())

    def _completing(self) -> Steps[None]:
        yield from ()

    def begin(self) -> None:
        """Start the communication that does not need the next gradient. Call it before computing
        the gradient. Local; most processes do nothing here."""

    def advancing(self, update: Array | None = None) -> Steps[None]:
        """`apply`, or without an `update` `apply_in_place`, as a generator that yields what it has
        to wait for. Do not change `update` until its end."""
        self._check_step(update)
        if update is not None and self._takes(update):
            self._x += update
        yield from self._advancing()

    def _advancing(self) -> Steps[None]:
        """Communicate after the update of x."""
        raise NotImplementedError

    def _takes(self, update: Array) -> bool:
        """Return whether the update is finite. Otherwise count it, and warn once."""
        if is_finite(update):
            return True
        if not self._counts.non_finite:
            logger.warning(
                "an update of this rank is not finite, and is left out; further ones are counted "
                "(stats.non_finite)"
            )
        self._counts.non_finite += 1
        return False

    def _check_step(self, update: Array | None) -> None:
        self._check_usable()
        if update is not None:
            self._check_update("update", update)

    def _check_usable(self) -> None:
        if self._freed:
            raise StateError("the process has been freed")

    def _check_update(self, argument: str, update: Any) -> None:
        self._check_usable()
        checks.instance(argument, update, np.ndarray, "a numpy array")
        own = self._x
        if update.shape != own.shape:
            raise ValueError(
                f"{argument}: expected shape {own.shape} as the model's, got {update.shape}"
            )
        if update.dtype != own.dtype:
            raise TypeError(f"{argument}: expected {own.dtype} as the model's, got {update.dtype}")

    @contextlib.contextmanager
    def _exposed(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._counts.exposed_s += time.perf_counter() - begin

    def communicate(self) -> bool:
        """Run one communication event, which waits for no other rank. The communication thread
        does it in a loop; without one (`start`), call it yourself. Return False if there was
        nothing to do, communication is stopped, or this process communicates in its steps."""
        return False

    def next_event(self) -> float | None:
        """Return the seconds until the next event that the steps have asked for; None if there is
        none. Contributions of other ranks may arrive earlier."""
        return None

    def start(self) -> None:
        """Start the communication thread, if the process has one. Local; idempotent."""

    def stop(self) -> None:
        """Stop the communication thread. Local; idempotent."""

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Context in which this rank begins no communication."""
        yield

    def _settle(self) -> None:
        """Apply all contributions that have arrived, and all updates."""

    # Exact averages over all ranks' models, with all contributions that are in flight.

    def _mass(self) -> tuple[Array, float]:
        """Return this rank's vector and weight; communication changes neither of their sums over
        the ranks, and the average is the first divided by the second."""
        return self._settled(), 1.0

    def _settled(self) -> Array:
        return self._x

    def _reset(self, model: Array) -> None:
        """Replace the model; earlier contributions must have no effect on it."""
        np.copyto(self._x, model)

    def _collective(self) -> GlobalSum:
        self._check_usable()
        if self._total is None:
            raise StateError(
                "total: expected GlobalSum.over(comm) for what is collective, got None"
            )
        return self._total

    def _gathering(self, total: GlobalSum) -> Steps[None]:
        """Wait for the other ranks, if they may need this rank as long as they make steps."""
        yield from ()

    def _averaging(self, total: GlobalSum) -> Steps[Array]:
        """Return the exact average; after the first meeting everything sent has arrived."""
        yield from self._completing()
        yield from total.meeting()
        self._settle()
        vector, weight = self._mass()
        model = np.array(vector, np.float64)
        yield from total.averaging([model], weight, wide=self._x.itemsize > 4)
        return model.astype(self._x.dtype)

    def averaged_model(self) -> Array:
        """Return the exact average of all models and contributions in flight. Collective."""
        total = self._collective()
        drive(self._gathering(total))
        with self._at_rest():
            return drive(self._averaging(total))

    def replacing(self, change: Callable[[Array], Array]) -> Steps[Array]:
        """Generator: replace every rank's model by `change(average)`, where `average` is the exact
        average and `change` returns a vector of the same shape and dtype. Collective."""
        total = self._collective()
        yield from self._gathering(total)
        with self._at_rest():
            model = change((yield from self._averaging(total)))
            self._reset(model)
            yield from total.meeting()  # no rank reads an old model after this
        return model

    def average_models(self) -> None:
        """Replace every rank's model by the exact average. Collective. Gossip processes need it
        once before the training and once after it."""
        drive(self.replacing(lambda model: model))

    def begin_anew(self, model: Array) -> None:
        """Replace this rank's model by `model`, of the same shape and dtype; earlier contributions
        have no effect. Collective: every rank gives a model."""
        drive(self.replacing(lambda mean: model))

    def consensus_distance(self) -> float:
        """Return the root of the mean of ``|x_i - mean|^2`` over the ranks' models. Collective."""
        return drive(self.measuring())

    def measuring(self) -> Steps[float]:
        """`consensus_distance` as a generator."""
        return self._collective().measuring(self.model)

    # States for checkpoints

    @property
    def stats(self) -> Counts:
        """A copy of the counts."""
        return Counts(**vars(self._counts))

    @property
    def exchange_stats(self) -> Any:
        """The buffer's counts after the last event, or None. Any thread may read them."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return a state for `load_state_dict`, as copies; for a consistent checkpoint of all ranks
        call `average_models` before. Local."""
        with self._at_rest():
            self._settle()
            model = self._settled().copy()
            return {"model": model, "steps": self._counts.steps, **self._more_state()}

    def state_of_model(self) -> dict[str, Any]:
        """Return the state of a process that starts with `model`. Right after `average_models` the
        states of all ranks are consistent, even if other ranks have continued since. Local."""
        return {"model": self.model.copy(), "steps": self._counts.steps, **self._new_state()}

    def _new_state(self) -> dict[str, Any]:
        """Return `_more_state` of a process that starts with `model`."""
        return self._more_state()

    def begin_at(self, steps: int) -> None:
        """Set the number of steps to `steps`, that of another rank with its boundaries. Local."""
        self._counts.steps = checks.count("steps", steps) if steps else 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which `state_dict` has returned. Local. Raises KeyError, TypeError
        or ValueError, and changes nothing, if it does not fit."""
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

    def _kept(self) -> dict[str, Array]:
        """Return the vectors that are saved beside the model, by their names in a state."""
        return {}

    def _more_state(self) -> dict[str, Any]:
        return {name: vector.copy() for name, vector in self._kept().items()}

    def _load_more(self, state: Mapping[str, Any]) -> None:
        for name, vector in self._kept().items():
            np.copyto(vector, state[name])

    def Free(self) -> None:
        """Stop, and free what the process has created, not what it was given. Idempotent."""
        self.stop()
        self._freed = True

    def __enter__(self: P) -> P:
        self.start()
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        try:
            self.Free()
        except StateError:
            if kind is None:  # else the thread's error would hide this one
                raise


class Alone(Process):
    """The process that replaces every other one if there is one rank. Parameters: see `Process`."""

    def _advancing(self) -> Steps[None]:
        self._counts.steps += 1
        yield from ()


class OnDevice:
    """Steps of a process with gradients on a device. The process itself works on the host:
    gradients are copied there, and the model is copied back (docs/gpu.md says what is waited for).

    The `process` was made with the model as an array of the host. `x`, an array of cupy, numba or
    torch on a CUDA device, of the model's shape and dtype (else TypeError or ValueError), is
    `model` from now on: the process's model, for what the current stream is given next. Changes of
    it by the program are lost with the next step.
    """

    def __init__(self, process: Process, x: Any) -> None:
        self.process, self.model, self._twins = process, x, Twins()
        self._fit("x", x, writable=True)
        self.refresh()

    def _fit(self, argument: str, array: Any, writable: bool = False) -> Any:
        buffer = as_device_buffer(argument, array, writable)
        own = self.process.model
        if buffer.array.shape != own.shape or buffer.array.dtype != own.dtype:
            raise ValueError(
                f"{argument}: expected shape {own.shape} and {own.dtype} as the model's, got "
                f"{buffer.array.shape} and {buffer.array.dtype}"
            )
        return buffer

    def refresh(self, stream: Any = None) -> None:
        """Copy the process's model, after `average_models` and such, to `model`, for what `stream`
        (of cupy or torch, or the number of a CUstream; None: the current one) is given next.
        Local."""
        own = self._twins.take("x", self._fit("x", self.model, writable=True), read=False)
        own[...] = self.process.model
        self._twins.land(stream, x=self.model)

    def step(self, gradient: Any, stream: Any = None) -> None:
        """`Process.step` with the `gradient` at `model`, an array like it, when the `stream` (see
        `refresh`) has come so far."""
        self.process.step(self._pulled("gradient", gradient, stream))
        self.refresh(stream)

    def apply(self, update: Any, stream: Any = None) -> None:
        """`Process.apply` of an `update` on the device, with the `stream` as of `step`."""
        self.process.apply(self._pulled("update", update, stream))
        self.refresh(stream)

    def _pulled(self, argument: str, array: Any, stream: Any) -> Any:
        return self._twins.take(argument, self._fit(argument, array), stream=stream)

    def free(self) -> None:
        """Wait for the copies, and give back the memory for them; the process goes on. Local."""
        self._twins.free()


class NeighborExchange(Schedule):
    """Sends one vector to all neighbors and receives theirs, again and again. Collective.

    `comm` is as of `Schedule`. The vectors have the shape and dtype of `like`, a numpy array, the
    same on all ranks. `neighbors`: the ranks to send to and receive from; who is a neighbor of whom
    must agree. All neighbors get the `send_buffer`, which is to be left alone between `Start` and
    `Wait`. `received` has what came from each, after `Wait` and until the next `Start`.

    Raises MismatchError on every rank if neighbors or sizes do not agree. It runs in the
    background, without burning a core. Memory: one vector, and one for each neighbor.
    """

    def __init__(self, comm: MPI.Intracomm, like: Array, neighbors: Iterable[int]) -> None:
        self.send_buffer = np.zeros_like(like)
        received = {int(j): np.zeros_like(like) for j in sorted(set(neighbors))}
        self.received: Mapping[int, Array] = MappingProxyType(received)
        if comm.rank in received:
            raise ValueError(f"neighbors: expected other ranks, got {comm.rank}, the own one")
        super().__init__(comm)
        for j, buffer in received.items():
            self.recv(buffer, j, label=f"of neighbor {j}")
            self.send(self.send_buffer, j, label=f"to neighbor {j}")
        self.commit()


# Joining: how a rank without data waits for the others, who may need it in their steps.
#
# In lock-step, a rank that has joined continues with empty steps, which do not change its
# model, until all have joined; all then end at the same step. How they learn of it:
#
# - `PeriodicJoin`: all ranks meet periodically anyway, and count there how many have joined.
# - `NeighborJoin`: only neighbors meet, in each step. A count c travels beside the models: it is 0
#   before this rank has joined, then 1 + the least of its own c and the neighbors'. Let the last
#   rank join at step T. Up to step T + D, D the diameter of the graph, c is at most D everywhere,
#   since a 0 spreads by one hop a step; after step T + k it is k. So all ranks find that c exceeds
#   any number from D on after the same step.
#
# Without lock-step no rank waits: in `average_models` a rank's communication thread answers.


class JoinHook:
    """The join of ranks that need no other rank in their steps; the base class of the others."""

    def begin(self) -> None:
        """Prepare for the gradient of a step. Local; idempotent until `after`."""

    def before(self, step: int) -> None:
        """Prepare for step number `step` of this rank, from 1."""

    def after(self) -> None:
        """Do the work after a step."""

    def join(self, process: Process) -> None:
        """Make empty steps of the `process`, if they are needed, until all ranks have joined; the
        exact average that follows waits for them otherwise."""

    def complete(self) -> None:
        """Complete what `begin` has started, without a step. Collective."""


class PeriodicJoin(JoinHook):
    """The join of `ranks` that all meet, in a sum of `total`, in every `every`-th step."""

    def __init__(self, total: GlobalSum, every: int, ranks: int) -> None:
        self._total, self._every, self._ranks = total, every, ranks

    def before(self, step: int) -> None:
        """Count the ranks that have joined, at a boundary."""
        if step % self._every == 0:
            self._joined(0)

    def _joined(self, own: int) -> int:
        return int(self._total.sum(np.array([float(own)]))[0])

    def join(self, process: Process) -> None:
        """Go to the first boundary with all. It counts as made, but nothing happens there: with
        momentum, an outer step would move a model that has been averaged already."""
        while True:
            step = process.stats.steps + 1
            if step % self._every == 0 and self._joined(1) == self._ranks:
                process.begin_at(step)
                return
            _empty_step(process)


class NeighborJoin(JoinHook):
    """The join of `ranks` that meet their neighbors in each step; `flags` exchanges one number."""

    def __init__(self, flags: NeighborExchange, ranks: int) -> None:
        self._flags, self._ranks, self._known = flags, ranks, 0
        self._joined = self._begun = False

    def begin(self) -> None:
        """Send this rank's count to the neighbors early, so that they need not wait for it."""
        if not self._begun:
            self._flags.send_buffer[0] = self._known
            self._flags.Start()
            self._begun = True

    def after(self) -> None:
        """Hear what they knew."""
        self._flags.Wait()
        self._begun = False
        heard = [int(flag[0]) for flag in self._flags.received.values()]
        self._known = 1 + min([self._known, *heard]) if self._joined else 0

    def join(self, process: Process) -> None:
        """Until all ranks are known to have joined; no two are further apart than `ranks`."""
        self._joined = True
        while self._known <= self._ranks:
            self.begin()
            _empty_step(process)
            self.after()
        self._joined, self._known = False, 0

    def complete(self) -> None:
        """See `JoinHook.complete`: a rank that has not told its neighbors begins."""
        self.begin()
        self.after()


def _empty_step(process: Process) -> None:
    process.begin()
    process.apply_in_place()
