# SPDX-License-Identifier: Apache-2.0
"""`PartialState`: what the communication hook of DistributedDataParallel keeps between its calls.

    bucket 0     bucket 1     last bucket                          end of backward
    copy         copy         copy, start, wait, divide, complete  DDP copies; an error is raised

Buckets are rebuilt after the first step, with other parameters in another order; the buffers here
have each parameter in one place for good.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, NoReturn

import torch

from .._buffers import Array
from .._errors import StateError
from .._round import Result, Round
from . import _batchnorm, _checkpoint, _ddp, _world
from ._average import Average
from ._buckets import Bucket, Buckets, Failure
from ._checks import Named, check_agreement, describe, together
from ._fingerprints import Fingerprints
from ._layout import Layout, dense_strides
from ._rounds import Rounds, Slot, divide
from .metrics import Metrics
from .strategies import Eager


class PartialState:
    """The state to register with `partial_allreduce_hook`: one round of a partial allreduce for
    each backward pass that DDP would synchronise. Make it after `init`, one for each DDP object.

    >>> ddp = DistributedDataParallel(model, broadcast_buffers=False)
    >>> ddp.register_comm_hook(pct.PartialState(quorum="solo"), pct.partial_allreduce_hook)

    Parameters
    ----------
    quorum : policy or str
        When a round may complete: "solo", "majority", "quorum:6", "full", ... with any of
        ",linger=50us,deadline=2s,max_staleness=8"; see `partialcoll.policy`.
    deliver : "one"
        The t-th such backward pass gets round t. Nothing else: DDP's hook cannot hand on several
        rounds; ``DistributedOptimizer`` with ``Eager(deliver="all")`` can.
    history : int
        No rank gets more rounds than that ahead of another.
    linger, deadline, max_staleness
        In place of those in `quorum`: seconds, seconds, rounds.
    algorithm, domain, progress, seed
        Of the allreduce, see `partialcoll.Allreduce_init`.
    average_every : int or None
        Steps (rounds with a gradient) after which `average_parameters` does so; None: whenever
        it is called.

    The gradient that DDP gets is the sum of the round divided by the number of all ranks. A
    gradient that was late is in the next round. Made collectively, and the arguments and
    parameters compared between ranks, in the first step: MismatchError out of everybody's
    backward() if they differ.

    Source: Li et al., PPoPP 2020, section 5; docs/ddp.md says what it promises.
    """

    def __init__(
        self,
        quorum: Any = "majority",
        *,
        deliver: str = "one",
        history: int = 8,
        linger: float | None = None,
        deadline: float | None = None,
        max_staleness: int | None = None,
        algorithm: str | None = None,
        domain: str | None = None,
        progress: str | None = None,
        seed: int = 0,
        average_every: int | None = None,
    ) -> None:
        if deliver != "one":
            raise ValueError(
                f"deliver: expected 'one' (a backward pass of DDP takes one round), got {deliver!r}"
                "; with DistributedOptimizer there is Eager(deliver='all')"
            )
        self._strategy = Eager(
            quorum=quorum,
            history=history,
            linger=linger,
            deadline=deadline,
            max_staleness=max_staleness,
            algorithm=algorithm,
            domain=domain,
            progress=progress,
            seed=seed,
        )
        self._every = _check_every(average_every)
        self._comm = _world.comm()
        self._own: Any = None  # a duplicate of it, since shutdown() may come before close()
        self._ddp: Any = lambda: None  # a weak reference; DDP's reducer has us, out of gc's sight
        self._module: Any = None
        self._rounds: Rounds | None = None  # made in the first step
        self._average: Average | None = None
        self._named: Named = []
        self._places: dict[int, int] = {}  # id of a parameter -> its place in the layout
        self._buckets = Buckets()
        self._slot: Slot | None = None  # where its gradients go
        self._filled: set[int] = set()
        self._extra = False  # `applied` has an interrupted step's round, for the next gradient
        self._averaged = 0  # the number of updates at which parameters were averaged last
        self._joining: Callable[[], Any] | None = None
        self._loaded: dict[str, Any] | None = None  # a checkpoint for the rounds to come
        self._failure = Failure()
        self._closed = False

    def __repr__(self) -> str:
        return f"PartialState({self._strategy!r}, average_every={self._every})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a PartialState belongs to its process and its model, and cannot be copied or "
            "pickled; save state_dict()"
        )

    # What the hook does

    @torch.no_grad()
    def _take(self, bucket: Any) -> Any:
        """A bucket of gradients; never raises. The future holds the buffer after the round."""
        here = Bucket(bucket)
        if self._buckets.add(here):
            self._filled.clear()
        try:
            here.look(bucket)
            if self._rounds is not None and not self._closed:
                self._deposit(self._rounds, here)
        except BaseException as error:
            self._failure.note(error)
        try:
            last = self._buckets.are_all(bucket, self._all_parameters)
            if last:
                self._exchange()
        except BaseException as error:
            self._failure.note(error)
            last = True
        if last:
            self._buckets.complete()
            self._filled.clear()
            self._failure.raise_after_backward()
        return here.future

    def _all_parameters(self) -> list[torch.Tensor]:
        return [parameter for _, parameter in _ddp.parameters(self._the_ddp(), None)]

    def _deposit(self, rounds: Rounds, bucket: Bucket) -> None:
        """The gradients of a bucket to their places in the send buffer."""
        if self._slot is None:
            self._slot = rounds.slot()
        flats, layout = self._slot.flats, rounds.layout
        for key, parameter, gradient in zip(bucket.ids, bucket.parameters, bucket.gradients):
            place = self._places.get(key)
            if place is None:
                raise StateError(
                    f"DistributedDataParallel: a parameter of shape {tuple(parameter.shape)} was "
                    "not in the first step's buckets; make a DistributedDataParallel and a "
                    "PartialState anew after changing the model"
                )
            layout.part(flats, place).copy_(gradient)
            bucket.places.append(place)
            self._filled.add(place)

    def _exchange(self) -> None:
        """All buckets are there: the round of this step."""
        self._check_open()
        if self._rounds is None:
            self._set_up([p for bucket in self._buckets.here for p in bucket.parameters])
            for bucket in self._buckets.here:
                self._deposit(self._the_rounds, bucket)
        rounds = self._the_rounds
        slot = self._slot if self._slot is not None else rounds.slot()
        if self._every and self._due(rounds):
            self._failure.note(
                StateError(
                    f"PartialState: average_every={self._every}, but average_parameters() was "
                    f"not called after step {rounds.updates}; call it after each "
                    "optimizer.step(), on all ranks"
                )
            )
        for place in range(len(self._named)):
            if place not in self._filled:  # its bucket failed: the others wait for this rank
                rounds.layout.part(slot.flats, place).zero_()
        self._catch_up(rounds)
        rounds.start(slot, True)
        self._slot = None
        result, sums = self._wait(rounds)
        while rounds.empty:  # somebody joined, which is no step for those who did: nor here
            rounds.finish(result)
            rounds.start_again()
            result, sums = self._wait(rounds)
        self._give(rounds, sums)
        rounds.finish(result)

    def _wait(self, rounds: Rounds) -> tuple[Result, list[Array]]:
        rnd = rounds.wait()
        rounds.note(rnd)
        return rnd.results[0], rounds.sums(rnd.results[0])

    def _give(self, rounds: Rounds, sums: list[Array]) -> None:
        """The round's average to the buckets."""
        for bucket in self._buckets.here:
            for place, gradient in zip(bucket.places, bucket.gradients):
                divide(rounds.layout.part(sums, place), self._comm.size, gradient)
                if self._extra:
                    gradient.add_(rounds.layout.part(rounds.applied, place))
        self._extra = False

    def _catch_up(self, rounds: Rounds) -> None:
        """The round of a step that was interrupted: its average goes into the next gradient."""
        missed = rounds.missed()
        if missed is not None:
            rounds.note(missed)
            rounds.average(missed.results[0])
            self._extra = True
            rounds.finish(missed.results[0])

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("the PartialState is closed; make another DistributedDataParallel")

    # Beginning

    def attach(self, ddp: Any) -> None:
        """Tell which DDP object it is registered with, after `register_comm_hook`. Local.

        Not needed: the first step looks for it. But what is refused (`find_unused_parameters`,
        `broadcast_buffers` for a model with buffers, ...) is refused here at once: ValueError.
        """
        _ddp.check(ddp, self._comm)
        if not _ddp.holds(ddp, self):
            raise StateError(
                "attach: this state is not registered there; call "
                "ddp.register_comm_hook(state, pct.partial_allreduce_hook) before"
            )
        if self._ddp() not in (None, ddp):
            raise StateError("attach: it belongs to another DistributedDataParallel already")
        self._ddp = weakref.ref(ddp)

    def _the_ddp(self) -> Any:
        ddp = self._ddp()
        return _ddp.find(self) if ddp is None else ddp

    def _set_up(self, seen: list[torch.Tensor] | None) -> None:
        """The handle, and everything that must be the same on all ranks. Collective."""
        saved = self._loaded

        def check() -> tuple[Any, Named]:
            ddp = self._the_ddp()
            _ddp.check(ddp, self._comm)
            named = _ddp.parameters(ddp, seen)
            if saved is not None:
                self._check_saved(saved, Layout([parameter for _, parameter in named]))
            return ddp, named

        ddp, named = together(self._comm, check)
        check_agreement(self._comm, [("state", repr(self)), *describe(named)])
        own = self._comm.Dup()
        rounds = Rounds(
            own,
            named,
            self._strategy.options(),
            divisor=self._comm.size,
            fingerprints=Fingerprints(self._comm.rank, self._comm.size, lambda: [], [], 1),
            update=self._update,
            keep_pending=not self._strategy.synchronous,
        )
        if saved is not None:
            self._resume(saved, rounds)
        self._ddp, self._module = weakref.ref(ddp), ddp.module
        self._named, self._rounds, self._own = named, rounds, own
        self._places = {id(parameter): i for i, (_, parameter) in enumerate(named)}

    @property
    def _the_rounds(self) -> Rounds:
        assert self._rounds is not None
        return self._rounds

    def _ready(self) -> Rounds:
        """For a call between steps: nothing is to be raised, the rounds are there."""
        self._failure.raise_now()
        self._check_open()
        if self._rounds is None:
            self._set_up(None)
        return self._the_rounds

    # What users ask

    @property
    def round(self) -> int:
        """Rounds that this rank has seen. Ranks of the same round have been given the same
        gradients."""
        if self._rounds is None:
            return 0 if self._loaded is None else int(self._loaded["version"])
        return self._rounds.version

    @property
    def last_round(self) -> Round | None:
        """Who was in the last step's round, and what else is known of it; None before."""
        return None if self._rounds is None else self._rounds.handle.last_round

    def metrics(self) -> Metrics:
        """Counts of this rank so far."""
        return Metrics() if self._rounds is None else self._rounds.metrics

    # Parameters

    def average_parameters(self) -> bool:
        """Make the parameters the exact mean over ranks, and so the same bits on all. Collective.

        With ``average_every=k``: does so after every k-th step, and nothing in between; call it
        after each ``optimizer.step()``, on all ranks. Without: at each call, which is collective
        then each time. The running statistics of BatchNorm are averaged as well (their counts
        become the largest), the optimizer's state is not. Returns whether it did.
        """
        self._failure.raise_now()
        self._check_open()
        if self._every and self._rounds is None:
            return False
        rounds = self._ready()
        self._catch_up(rounds)
        if not self._due(rounds):
            return False
        self._average_all(rounds)
        return True

    def _due(self, rounds: Rounds) -> bool:
        if self._every is None:
            return True
        return rounds.updates % self._every == 0 and rounds.updates != self._averaged

    def _average_all(self, rounds: Rounds) -> None:
        if self._average is None:
            self._average = Average(self._own)
        self._average([parameter for _, parameter in self._named])
        _batchnorm.average(self._own, self._module)
        self._averaged = rounds.updates

    def join(self, step: Any = None) -> None:
        """No more data on this rank: contribute nothing until all ranks have joined. Collective.

        Parameters
        ----------
        step : optimizer, callable or None
            How this rank takes the updates of rounds that the others make meanwhile, and of what
            was late: for each of them, the round's average is put into the parameters' ``.grad``,
            `step` is called (``step.step()`` of an optimizer), and ``.grad`` becomes None. It must
            do what your loop does after backward: clip, step, step the scheduler. Nothing is
            lost then, and the replicas stay as identical as they were. None: these rounds are
            not applied here; afterwards all ranks take the exact mean of their parameters. The
            same kind on all ranks.

        When it returns all ranks are at the same round, nothing is pending, and training can
        go on. BatchNorm's running statistics are averaged. MismatchError if only some ranks
        gave `step`.
        """
        if step is not None and not callable(getattr(step, "step", step)):
            raise TypeError(
                f"step: expected an optimizer, a callable or None, got {type(step).__name__}"
            )
        rounds = self._ready()
        self._catch_up(rounds)
        self._average_if_due()
        self._joining = None if step is None else getattr(step, "step", step)
        if self._extra and self._joining is not None:
            self._apply(rounds, self._joining)
        rounds.join(self._average_if_due)
        self._extra, self._joining = False, None
        check_agreement(self._own, [("join", "without step" if step is None else "with step")])
        if step is None:
            self._average_all(rounds)
        else:
            _batchnorm.average(self._own, self._module)

    def _average_if_due(self) -> None:
        """Others call `average_parameters` after this round: take part."""
        rounds = self._the_rounds
        if self._every and self._due(rounds):
            self._average_all(rounds)

    def _update(self, _: Result) -> None:
        """A round's average is in `applied`: in `join` this rank steps with it."""
        if self._joining is not None:
            self._apply(self._the_rounds, self._joining)

    def _apply(self, rounds: Rounds, step: Callable[[], Any]) -> None:
        for place, (_, parameter) in enumerate(self._named):
            flat = rounds.layout.part(rounds.applied, place)
            if dense_strides(parameter) == parameter.stride():
                parameter.grad = flat.as_strided(parameter.shape, parameter.stride())
            else:  # DDP has it in the order of its dimensions
                parameter.grad = flat.view(parameter.shape)
        step()
        for _, parameter in self._named:
            parameter.grad = None

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What this rank has to save, besides model and optimizer; each rank saves its own. Local.

        The number of the round, and the deposit of this rank that no round has brought yet.
        Between two steps, on all ranks after the same one.
        """
        self._failure.raise_now()
        self._check_open()
        if self._extra or (self._rounds is not None and self._rounds.missed() is not None):
            raise StateError(
                "state_dict() after a step that was interrupted: its round is in no gradient yet; "
                "make another step before"
            )
        rounds = self._rounds
        if rounds is None and self._loaded is not None:
            return dict(self._loaded)
        return {
            "size": self._comm.size,
            "rank": self._comm.rank,
            "strategy": repr(self._strategy),
            "version": 0 if rounds is None else rounds.version,
            "updates": 0 if rounds is None else rounds.updates,
            "pending": None if rounds is None else _checkpoint.by_dtype(rounds.pending),
            "layout": "" if rounds is None else rounds.layout.digest(),
            "schedulers": [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was called; before the first step or right after `join`. Local.

        What was pending is added to this rank's next deposit. ValueError for a state of another
        rank, number of ranks or model (of another model: in the first step, on all ranks at
        least MismatchError); StateError between rounds.
        """
        self._failure.raise_now()
        self._check_open()
        rounds = self._rounds
        if rounds is None:
            self._check_saved(state_dict, None)
            self._loaded = dict(state_dict)
            return
        if not (rounds.rests or self._strategy.synchronous):
            raise StateError(
                "load_state_dict() between rounds: late deposits of the ranks are under way; load "
                "before the first step or right after join()"
            )
        self._check_saved(state_dict, rounds.layout)
        self._resume(state_dict, rounds)

    def _check_saved(self, saved: Any, layout: Layout | None) -> None:
        """Without a layout, as far as that can be told."""
        if layout is None:
            layout = Layout([])
            if isinstance(saved, dict) and "pending" in saved:
                saved = {**saved, "pending": None}
        _checkpoint.check(saved, self._comm.rank, self._comm.size, layout, ())

    def _resume(self, saved: dict[str, Any], rounds: Rounds) -> None:
        pending = _checkpoint.pending(saved, rounds.applied)
        rounds.resume(saved["version"], saved["updates"], pending)
        self._averaged = rounds.updates
        self._loaded = None

    def close(self) -> None:
        """Free what the library holds. Collective; idempotent. The DDP object cannot step any more.

        Raises what the hook could not, if there is such an error.
        """
        if not self._closed:
            self._closed = True
            self._slot = None
            if self._average is not None:
                self._average.free()
            if self._rounds is not None:
                self._rounds.free()
                self._own.Free()
        self._failure.raise_now()


def _check_every(every: Any) -> int | None:
    if every is None:
        return None
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(
            f"average_every: expected a number of rounds or None, got {type(every).__name__}"
        )
    if every < 1:
        raise ValueError(f"average_every: expected at least 1 round, got {every}")
    return every
