# SPDX-License-Identifier: Apache-2.0
"""The communication hook for torch's DistributedDataParallel, on whatever process group it has.

    bucket 0     bucket 1     last bucket                          end of backward
    copy         copy         copy, start, wait, divide, complete  DDP copies; an error is raised

Buckets are rebuilt after the first step, with other parameters in another order; the buffers here
have each parameter in one place for good.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator
from typing import Any, Callable, NoReturn

import torch
import torch.distributed as dist

from .._core import checks, communicator
from .._core.buffers import Array
from .._core.mpi import MPI
from .._core.settings import logger
from ..collectives.agreement import check_agreement, together
from ..collectives.fingerprints import Fingerprints
from ..decentralized import GlobalSum
from ..errors import StateError
from ..round import Result, Round
from . import world
from .flat import Named, dense_strides, divide
from .loop import average_statistics, average_tensors, check_model, describe
from .metrics import RoundMetrics
from .ops.call import Future
from .optimizer import check_parameters
from .rounds import Replicated
from .strategies import Eager

DDP = torch.nn.parallel.DistributedDataParallel


def _check_ddp(ddp: Any, comm: MPI.Intracomm) -> None:
    """Raise ValueError or TypeError for options with which DDP would wait for all ranks in every
    step, quorum or not, or could not work."""
    checks.instance("ddp", ddp, DDP, "a torch.nn.parallel.DistributedDataParallel")
    ranks = ddp.process_group.size()
    if ranks != comm.size:
        raise ValueError(
            f"DistributedDataParallel: its process group has {ranks} ranks, the communicator of "
            f"pct.init() has {comm.size}; both must be of the same ranks"
        )
    waits = {
        "find_unused_parameters=True makes every step wait for all ranks (an allreduce of which "
        "parameters were used); make it with find_unused_parameters=False, and with "
        "static_graph=True if some parameters are never used, or add 0 * parameter.sum() to the "
        "loss for those that are used at times": ddp.find_unused_parameters,
        "broadcast_buffers=True, the default, makes every forward pass wait for rank 0, since the "
        "model has buffers; make it with broadcast_buffers=False (join() and average_parameters() "
        "average BatchNorm's)": ddp.broadcast_buffers and len(ddp.modules_buffers),
        "mixed_precision= reduces other tensors than the parameters'; use torch.autocast": (
            getattr(ddp, "mixed_precision", None) is not None
        ),
        "delay_all_reduce_named_params= is an allreduce that waits for all ranks; leave it out": (
            getattr(ddp, "_delay_all_reduce_params", None)
        ),
    }
    for text, found in waits.items():
        if found:
            raise ValueError(f"DistributedDataParallel: {text}")
    check_model(ddp.module, "make it with sparse=False")


class PartialState:
    """Average the gradients of `ddp` by a partial allreduce: one round for each backward pass that
    DDP would synchronize. Make it after `init`, one for each DDP object.

    >>> ddp = DistributedDataParallel(model, broadcast_buffers=False)
    >>> state = pct.PartialState(ddp, quorum="solo")

    Parameters
    ----------
    ddp : torch.nn.parallel.DistributedDataParallel
        Registers `partial_allreduce_hook` there. ValueError or TypeError for options of DDP that
        would make every step wait for all ranks.
    quorum, history, linger, deadline, max_staleness, algorithm, domain, progress, seed, on_failure
        The `options`, as of `Eager`. The t-th such backward pass gets round t; what else `Eager`
        has, ``deliver="all"`` and `clip_norm`, DDP has no place for: `DistributedOptimizer` does.
    average_every : int or None
        Steps (rounds with a gradient) after which `average_parameters` does so; None: whenever
        it is called.

    The gradient that DDP gets is the sum of the round divided by how many ranks live. A
    gradient that was late is in the next round. Collective; MismatchError on every rank if the
    arguments or the parameters differ.

    Source: Li et al., PPoPP 2020, section 5; docs/ddp.md says what it promises.
    """

    def __init__(
        self,
        ddp: Any,
        quorum: Any = Eager.quorum,
        *,
        average_every: int | None = None,
        **options: Any,
    ) -> None:
        comm = world.comm()

        def check() -> tuple[Eager, Named]:
            if world.world().replacing is not None:
                raise StateError(
                    "PartialState: not after init(respawn=True): DistributedDataParallel keeps the "
                    "process group that it was made with; take DistributedOptimizer"
                )
            strategy = Eager(quorum, **options)
            if strategy.deliver != "one":
                raise ValueError(
                    "deliver: expected 'one' (a backward pass of DDP takes one round), got "
                    f"{strategy.deliver!r}; with DistributedOptimizer there is Eager(deliver='all')"
                )
            if strategy.clip_norm is not None:
                raise ValueError(
                    f"clip_norm: expected None, got {strategy.clip_norm}: clip after backward, as "
                    "with any DistributedDataParallel"
                )
            if average_every is not None:
                checks.count("average_every", average_every, what="a number of rounds")
            _check_ddp(ddp, comm)
            ignored = {name.lstrip(".") for name in ddp.parameters_to_ignore}
            everything = ddp.module.named_parameters()  # buckets have another order, which changes
            named = [(n, one) for n, one in everything if one.requires_grad and n not in ignored]
            check_parameters(named)
            return strategy, named

        self._strategy, self._named = together(comm, check)
        self._every = average_every
        check_agreement(comm, [("state", repr(self)), *describe(self._named)])
        ddp.register_comm_hook(self, partial_allreduce_hook)
        self._ddp = weakref.ref(ddp)  # DDP's reducer holds this state, invisibly to the collector
        self._module = ddp.module
        self._own = own = comm.Dup()  # shutdown() may come before close()
        self._rounds = Replicated(
            own, self._named, self._strategy, float, Fingerprints(own), self._update
        )
        self._total: GlobalSum | None = None
        # The place of each parameter in the layout, by its id.
        self._places = {id(parameter): i for i, (_, parameter) in enumerate(self._named)}
        # These belong to the current step: the future and the buffer of each bucket, the ids of the
        # parameters in the buckets, and a flat view of each deposited gradient, by place.
        self._futures: list[tuple[Any, torch.Tensor]] = []
        self._seen: set[int] = set()
        self._gradients: dict[int, torch.Tensor] = {}
        # An interrupted step's average, for the next gradient.
        self._extra: list[torch.Tensor] | None = None
        self._averaged = 0  # the number of updates at which parameters were averaged last
        self._joining: Callable[[], Any] | None = None
        self._error: BaseException | None = None  # of the hook, not raised yet
        self._closed = False

    def __repr__(self) -> str:
        return f"PartialState({self._strategy!r}, average_every={self._every})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a PartialState belongs to its process and its model, and cannot be copied or "
            "pickled; save state_dict()"
        )

    # The hook. DDP calls it once for each bucket, in the middle of backward, and does not support
    # errors: a hook that raises, or a future that fails, breaks its reducer. So every future is
    # always completed, with the local gradient if there is no result, and an error is raised when
    # DDP has finished, from the same backward() if possible.

    @torch.no_grad()
    def _take(self, bucket: Any) -> Any:
        """Take a bucket of gradients; never raises. The future holds the buffer after the round."""
        buffer, ids = bucket.buffer(), set(map(id, bucket.parameters()))
        future = Future([buffer.device])
        if not self._seen.isdisjoint(ids):  # a step before this one broke off
            self._forget_step()
        self._seen |= ids
        self._futures.append((future, buffer))
        with self._noting():
            if not self._closed:
                self._deposit(bucket, buffer)
        last = bucket.is_last()
        if not last and bucket.index() == 0 and len(self._futures) > 1:
            # In the first step of a static graph all are number 0, and none is last (torch 2.13).
            last = self._seen.issuperset(self._places)
        if not last:
            return future
        with self._noting():
            self._exchange()
        for one, value in self._futures:
            one.set_result(value)
        self._forget_step()
        if self._error is not None:
            # DDP has asked for a callback in this pass, and has finished after it. Where no
            # backward pass is under way, the next call raises the error.
            engine = torch.autograd.Variable._execution_engine
            with contextlib.suppress(RuntimeError):
                engine.queue_callback(lambda: engine.queue_callback(self._raise_noted))
        return future

    def _forget_step(self) -> None:
        self._futures, self._seen, self._gradients = [], set(), {}

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Log what is raised within; the first error is raised later."""
        try:
            yield
        except BaseException as error:
            logger.error("partial_allreduce_hook: %s: %s", type(error).__name__, error)
            if self._error is None:
                self._error = error

    def _raise_noted(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _deposit(self, bucket: Any, buffer: torch.Tensor) -> None:
        """The gradients of a bucket to their places in the send buffer."""
        if buffer.layout != torch.strided:
            raise TypeError(
                "DistributedDataParallel: a bucket is sparse, which is not supported; make its "
                "layer with sparse=False"
            )
        flats = self._rounds.slot().flats
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            place, flat = self._places.get(id(parameter)), gradient.view(-1)
            if place is None:
                raise StateError(
                    f"DistributedDataParallel: a parameter of shape {tuple(parameter.shape)} was "
                    "not among the model's; make a DistributedDataParallel and a PartialState "
                    "anew after changing the model"
                )
            if flat.dtype != parameter.dtype:
                raise TypeError(
                    "DistributedDataParallel: expected gradients of their parameters' dtype, got "
                    f"{flat.dtype} for {parameter.dtype}"
                )
            self._rounds.layout.part(flats, place).copy_(flat)
            self._gradients[place] = flat

    def _exchange(self) -> None:
        """All buckets are there: the round of this step."""
        self._check_open()
        if getattr(getattr(self._ddp(), "_join_config", None), "enable", False):
            raise ValueError(
                "DistributedDataParallel: within ddp.join() every step waits for all ranks; use "
                "state.join() for uneven data"
            )
        rounds = self._rounds
        if self._due():
            with self._noting():
                raise StateError(
                    f"PartialState: average_every={self._every}, but average_parameters() was "
                    f"not called after step {rounds.updates}; call it after each "
                    "optimizer.step(), on all ranks"
                )
        slot = rounds.slot()
        for place in range(len(self._named)):
            if place not in self._gradients:  # its bucket failed: the others wait for this rank
                rounds.layout.part(slot.flats, place).zero_()
        self._extra = rounds.catch_up(self._extra)
        rounds.exchange(slot, self._give)

    def _give(self, sums: list[Array]) -> None:
        """The round's average to the buckets, and that of a step that was interrupted."""
        rounds = self._rounds
        for place, gradient in self._gradients.items():
            divide(rounds.layout.part(sums, place), rounds.divisor, gradient)
            if self._extra is not None:
                gradient.add_(rounds.layout.part(self._extra, place))
        self._extra = None

    def _check_open(self) -> None:
        communicator.check_running("the PartialState")
        if self._closed:
            raise StateError("the PartialState is closed; make another DistributedDataParallel")

    def _check_heard(self) -> None:
        """For a call between steps: nothing is to be raised."""
        self._raise_noted()
        self._check_open()

    def _ready(self) -> Replicated:
        """The rounds, with what an interrupted step has missed."""
        self._check_heard()
        self._extra = self._rounds.catch_up(self._extra)
        return self._rounds

    # Queries

    @property
    def round(self) -> int:
        """Rounds that this rank has seen. Ranks of the same round have been given the same
        gradients."""
        return self._rounds.version

    @property
    def last_round(self) -> Round | None:
        """The last step's round, with the ranks that were in it; None before the first step."""
        return self._rounds.handle.last_round

    def metrics(self) -> RoundMetrics:
        """Return the counts of this rank so far."""
        return copy.copy(self._rounds.metrics)

    # Parameters

    def average_parameters(self) -> bool:
        """Make the parameters the exact mean over ranks, and so the same bits on all. Collective.

        With ``average_every=k``: does so after every k-th step, and nothing in between; call it
        after each ``optimizer.step()``, on all ranks. Without: at each call, which is collective
        then each time. The running statistics of BatchNorm are averaged as well (their counts
        become the largest), the optimizer's state is not. Returns whether it did.
        """
        self._ready()
        due = self._every is None or self._due()
        if due:
            self._average()
        return due

    def _due(self) -> bool:
        """Return whether `average_every` asks for an average now."""
        updates = self._rounds.updates
        return bool(self._every and updates % self._every == 0 and updates != self._averaged)

    def _average(self, parameters: bool = True) -> None:
        """Average BatchNorm's statistics, and the parameters. Collective."""
        how = self._strategy.on_failure
        if self._total is None:
            self._total = GlobalSum.over(self._own, how)
        if parameters:
            average_tensors(self._total, [parameter for _, parameter in self._named])
            self._averaged = self._rounds.updates
        average_statistics(self._own, self._total, self._module, how)

    def join(self, step: Any = None) -> None:
        """Contribute nothing until all ranks have joined: this rank has no more data. Collective.

        `step`, an optimizer, a callable or None, is how this rank takes the updates of rounds that
        the others make meanwhile, and of what was late: for each of them, the round's average is
        put into the parameters' ``.grad``, `step` is called (``step.step()`` of an optimizer), and
        ``.grad`` becomes None. It must do what your loop does after backward: clip, step, step the
        scheduler. Nothing is lost then, and the replicas stay as identical as they were. None:
        these rounds are not applied here; afterwards all ranks take the exact mean of their
        parameters. The same kind on all ranks.

        When it returns all ranks are at the same round, nothing is pending, and training can
        go on. BatchNorm's running statistics are averaged. MismatchError if only some ranks
        gave `step`.
        """
        if step is not None and not callable(getattr(step, "step", step)):
            raise TypeError(
                f"step: expected an optimizer, a callable or None, got {type(step).__name__}"
            )
        rounds = self._ready()
        self._average_if_due()
        self._joining = None if step is None else getattr(step, "step", step)
        if self._extra is not None and self._joining is not None:
            self._apply(self._extra, self._joining)
        rounds.join(self._average_if_due)
        self._extra, self._joining = None, None
        said = [("join", "without step" if step is None else "with step")]
        check_agreement(self._own, said, self._strategy.on_failure)
        self._average(parameters=step is None)

    def _average_if_due(self) -> None:
        """Others call `average_parameters` after this round: take part."""
        if self._due():
            self._average()

    def _update(self, _: Result) -> None:
        """A round's average is in `applied`: in `join` this rank steps with it."""
        if self._joining is not None:
            self._apply(self._rounds.applied, self._joining)

    def _apply(self, flats: list[torch.Tensor], step: Callable[[], Any]) -> None:
        for place, (_, parameter) in enumerate(self._named):
            flat = self._rounds.layout.part(flats, place)
            if dense_strides(parameter) == parameter.stride():
                parameter.grad = flat.as_strided(parameter.shape, parameter.stride())
            else:  # DDP has it in the order of its dimensions
                parameter.grad = flat.view(parameter.shape)
        step()
        for _, parameter in self._named:
            parameter.grad = None

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state besides model and optimizer; each rank saves its own. Local.

        It has the number of the round, and the deposit of this rank that is in no round yet.
        Call it between two steps, on all ranks after the same one.
        """
        self._check_heard()
        if self._extra is not None or self._rounds.missed() is not None:
            raise StateError(
                "state_dict() after a step that was interrupted: its round is in no gradient yet; "
                "make another step before"
            )
        return self._rounds.entry()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was called; before the first step or right after `join`. Local.

        What was pending is added to this rank's next deposit. ValueError for a state of another
        rank, number of ranks or model; StateError between rounds.
        """
        self._check_heard()
        self._rounds.check_loading(state_dict, [])
        self._rounds.load(state_dict)
        self._averaged = self._rounds.updates

    def close(self) -> None:
        """Free what the library holds. Collective; idempotent. The DDP object cannot step any more.

        Raises what the hook could not, if there is such an error.
        """
        closed, self._closed = self._closed, True
        if not closed and not MPI.Is_finalized():
            if self._total is not None:
                self._total.Free()
            self._rounds.free()
            self._own.Free()
        self._raise_noted()


def partial_allreduce_hook(state: PartialState, bucket: Any) -> Any:
    """A DDP communication hook: gradients go by a partial allreduce, one round for each step.

    A `PartialState` registers it. DDP gives it this `state`, and each `bucket`, which is copied
    when it is ready; the round takes place with the last one. The futures are always completed:
    with the round's sum divided by the number of ranks, or, if that failed, with the local
    gradient, and then backward() raises the error when DDP has finished. TypeError, on this rank
    alone, for a state that is not a `PartialState`.
    """
    checks.instance("state", state, PartialState, "a PartialState")
    return state._take(bucket)


# DDP compares these with its own, as objects. (A torch built without it can be imported, too.)
partial_allreduce_hook.__annotations__.update(
    {"bucket": getattr(dist, "GradBucket", Any), "return": torch.futures.Future[torch.Tensor]}
)
