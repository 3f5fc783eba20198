# SPDX-License-Identifier: Apache-2.0
"""Training that goes on from its last commit, by Horovod's names (`horovod.torch.elastic`).

What all ranks get, as MismatchError, brings them all back to the last commit; an error of one rank
alone ends its program, and those of the others with it. A rank that dies brings nobody back where
the optimizer goes on (``on_failure="continue"``): at the next commit the world is formed of those
who live.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any, Callable, TypeVar

import torch

from .._core.settings import logger
from ..errors import CollectiveError, RankFailedError
from . import world
from .verbs import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]

T = TypeVar("T")


class HostsUpdatedInterrupt(RuntimeError):
    """Raised within `run`: call the function again from where it is; `skip_sync`: without a
    `State.sync` before. `State.commit` raises it when a rank has died."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class State:
    """The state that training continues from. A subclass defines how to save, restore and
    synchronize it. `bcast_object` and `get_rank` are Horovod's parameters; they are not used."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0
        self._failures = _failures()

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Register `callbacks`, which are called without arguments each time that training
        restarts, after `reset`."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Restart training: call `reset`, then the callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """This is what training goes on from, from now on. Local: on all ranks after the same
        step."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Form a new world and raise HostsUpdatedInterrupt if a rank has died since the last call.
        The rounds of the optimizers report the death on all ranks after the same step. The world
        has the live ranks, with ``init(respawn=True)`` also joining ranks in place of the dead;
        ``respawn="overlap"`` raises once more when these have joined. Without a death local.

        MismatchError, on all ranks, if a joining rank has another model or other options."""
        died = _failures() != self._failures
        replacing = world.replacing()
        if died or (replacing is not None and replacing.due(world.comm())):
            world.form_anew(replace=True, died=died)
            self._failures = _failures()
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Keep a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Become the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Become what rank 0 has. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Rebuild objects that depend on the world, before `sync`."""


def _failures() -> int:
    """Return the number of dead ranks that the optimizers' rounds know of."""
    optimizers = world.world().optimizers if world.is_initialized() else []
    return max((len(one._loop.metrics.failed) for one in optimizers), default=0)


class ObjectState(State):
    """Plain `values`, by name, which are attributes: what pickle takes. `bcast_object` and
    `get_rank` are Horovod's; nothing else than `broadcast_object` is needed."""

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Any = None,
        **values: Any,
    ) -> None:
        super().__init__()
        self._broadcast, self._saved = bcast_object, copy.deepcopy(values)
        vars(self).update(values)

    def _shown(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved}

    def save(self) -> None:
        self._saved = copy.deepcopy(self._shown())

    def restore(self) -> None:
        vars(self).update(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """They are what rank 0 has; on a rank that has not committed yet, as if it had.
        Collective."""
        vars(self).update(self._broadcast(self._shown()))
        if not self._commits:
            self.save()


class TorchState(ObjectState):
    """A `model`, an `optimizer`, and other values, which are attributes.

    `values`: more of them, by name: whatever has `state_dict` and `load_state_dict` (models,
    optimizers, an `ElasticSampler`, learning rate schedulers, …), and plain values.

    Commit where the optimizer's state can be loaded, see its `load_state_dict`: with strategies
    other than `Allreduce` right after `join`.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        both = ("state_dict", "load_state_dict")
        stateful = [n for n, one in given.items() if all(hasattr(one, name) for name in both)]
        self._states: dict[str, Any] = dict.fromkeys(stateful)  # of values, as of the last save
        for name in stateful:
            setattr(self, name, given.pop(name))
        super().__init__(**given)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self.__dict__.get("_states", ()):
            self._states[name] = copy.deepcopy(value.state_dict())

    def save(self) -> None:
        for name in self._states:
            self._states[name] = copy.deepcopy(getattr(self, name).state_dict())
        super().save()

    def restore(self) -> None:
        for name, saved in self._states.items():
            value = getattr(self, name)
            if hasattr(value, "_loop"):
                value._loop.discard()
            keeps = not isinstance(value, torch.nn.Module)  # what it is given, and changes it
            value.load_state_dict(copy.deepcopy(saved) if keeps else saved)
        super().restore()

    def sync(self) -> None:
        """All become what rank 0 has; on a rank that has not committed yet, as if it had.
        Collective."""
        for value in (getattr(self, name) for name in self._states):
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), root_rank=0)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root_rank=0)
            else:
                value.load_state_dict(broadcast_object(value.state_dict()))
        super().sync()


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Makes of `func`, a function of a `State` and more, one that goes on from the last commit
    after an error that all ranks get. Collective.

    The state is synchronized from rank 0, and the function called. After a HorovodInternalError
    the state is what was committed last, is synchronized, and the function is called again; not a
    second time without a commit in between: then the error is raised. Other errors, which are of
    one rank alone, are raised at once; so is RankFailedError without
    ``init(on_failure="continue")``.

    When a rank has died, `State.commit` forms a new world of the surviving ranks, without undoing
    any steps. With ``init(respawn=True)`` joining ranks take the places of the dead: they run the
    same program, and get the state from rank 0, a survivor, in this function.
    """

    @functools.wraps(func)
    def trained(state: State, *arguments: Any, **named: Any) -> T:
        failed_at = (-1, 0)
        synchronized = False
        while True:
            try:
                if not synchronized:
                    state.sync()
                    if (replacing := world.replacing()) is not None:
                        replacing.lived = True
                return func(state, *arguments, **named)
            except HostsUpdatedInterrupt as change:
                synchronized = change.skip_sync
            except CollectiveError as error:
                lost = isinstance(error, RankFailedError)
                ranks = world.size() if world.is_initialized() else 0
                at = (state._commits, ranks)  # each death leaves fewer
                if at == failed_at or not ranks or (lost and world.world().on_failure == "raise"):
                    raise
                failed_at, synchronized = at, False
                logger.warning("training goes on from its last commit after %r", error)
                if lost:
                    world.form_anew()
                state.restore()
            state.on_reset()

    return trained


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Shares the samples of a dataset out to the ranks, without those of this epoch that were
    recorded as processed before a commit.

    `dataset`: with a length, the same on all ranks. `shuffle`: in another order in each epoch, the
    same on all ranks; `seed`: of that order. Call `record_batch` after each batch and `set_epoch`
    at the end of an epoch, and put the sampler into the `TorchState`. Every rank gets as many
    samples: some are repeated if their number is not divisible by the number of ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch number `epoch`, of which nothing has been processed."""
        self.load_state_dict({"epoch": epoch, "processed_num": 0})

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Each rank has processed `batch_size` more samples. `batch_idx` is Horovod's; not
        needed."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and the number of its samples that all ranks have processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue from `state_dict`, a result of the method of this name, with the samples that
        were left then."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Distribute the remaining samples over the ranks again."""
        self.rank, self.num_replicas = world.rank(), world.size()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        rounds = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(rounds, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
