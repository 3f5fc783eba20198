# SPDX-License-Identifier: Apache-2.0
"""The strategies of `bench train` by name: how each is made, and whom a rank waits for with it.

torch, MPI and the library are imported when one is made: the command line names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .delays import Meetings, Waits, everybody, groups, neighbors


@dataclass(frozen=True)
class Choice:
    """A strategy that can be asked for.

    Parameters
    ----------
    make : callable
        Makes the `partialcoll.torch.Strategy`, from the options of the command line; those that
        it has (`options`) by keyword, where they were given.
    waits : Waits or callable
        For its limit by arithmetic: whom a rank waits for in every step; or, from the strategy
        that was made and the number of ranks, when it meets whom.
    replicas : bool
        All ranks have the same parameters at equal rounds, and rounds are what they count; else
        each has a model of its own and counts its own steps.
    options : tuple of str
        Of the command line, in the strategy's own words.
    both : int
        Ranks that have a part in a communication which one of them has begun.
    survives : bool
        The others go on when a rank dies.
    """

    make: Callable[..., Any]
    waits: Waits | Callable[[Any, int], Meetings]
    replicas: bool = False
    options: tuple[str, ...] = ()
    both: int = 1
    survives: bool = False


def _ours(name: str, **more: Any) -> Callable[..., Any]:
    def make(**given: Any) -> Any:
        from .... import torch

        return getattr(torch, name)(**more, **given)

    return make


def _swarm_8bit(**given: Any) -> Any:
    from ....codec import Lattice
    from ....torch import Swarm

    return Swarm(codec=Lattice(bits=8), **given)


def _slowmo(**given: Any) -> Any:
    from ....torch import LocalSGD, SlowMo

    return SlowMo(LocalSGD(**given))


def _neighbors(strategy: Any, ranks: int) -> Meetings:
    from ....topology import Topology

    graph = Topology.make(strategy.topology, ranks)
    return neighbors([graph.neighbors(rank) for rank in range(ranks)])


def _group(strategy: Any, ranks: int) -> Meetings:
    from ....grid import Grid

    return groups(Grid(strategy.grid, ranks), strategy.local_steps)


def _eager(quorum: str, waits: Waits, deliver: str = "one") -> Choice:
    make, survives = _ours("Eager", quorum=quorum, deliver=deliver), deliver == "one"
    return Choice(make, waits, True, ("history",), survives=survives)


_PAIRS = ("topology", "rate")
_NOBODY = Waits.NOBODY

STRATEGIES: dict[str, Choice] = {
    "allreduce": Choice(_ours("Allreduce"), Waits.ALL, replicas=True, survives=True),
    "eager-solo": _eager("solo", Waits.FIRST),
    "eager-majority": _eager("majority", Waits.DRAWN),
    "eager-full": _eager("full", Waits.ALL),
    "eager-solo-all": _eager("solo", _NOBODY, deliver="all"),
    "adpsgd": Choice(_ours("ADPSGD"), _NOBODY, options=_PAIRS, both=2),
    "dpsgd": Choice(_ours("DPSGD"), _neighbors, options=("topology",)),
    "swarm": Choice(_ours("Swarm"), _NOBODY, options=("topology", "local_steps"), both=2),
    "swarm-8bit": Choice(_swarm_8bit, _NOBODY, options=("topology", "local_steps"), both=2),
    "a2cid2": Choice(_ours("A2CiD2"), _NOBODY, options=_PAIRS, both=2),
    "a2cid2-paper": Choice(_ours("A2CiD2", variant="paper"), _NOBODY, options=_PAIRS, both=2),
    "a2cid2-baseline": Choice(_ours("A2CiD2", accelerated=False), _NOBODY, options=_PAIRS, both=2),
    "moshpit": Choice(_ours("Moshpit"), _group, options=("grid", "local_steps")),
    "sgp": Choice(_ours("SGP"), _NOBODY, options=("rate",)),
    "localsgd": Choice(
        _ours("LocalSGD"),
        lambda strategy, ranks: everybody(ranks, strategy.local_steps),
        options=("local_steps",),
    ),
    "slowmo": Choice(
        _slowmo,
        lambda strategy, ranks: everybody(ranks, strategy.inner.local_steps, strategy.tau),
        options=("local_steps",),
    ),
}


def make(name: str, options: SimpleNamespace, topology: str | None) -> Any:
    """The strategy of this name, with what the command line says; the rest is its own default."""
    given = {word: getattr(options, word, None) for word in STRATEGIES[name].options}
    if "pattern" in vars(options) and options.pattern.kills:
        given["on_failure"] = "continue"
    if "topology" in given:
        given["topology"] = topology
    if given.get("grid") not in (None, "auto"):
        from ....grid import Grid

        given["grid"] = Grid(options.grid).sides
    return STRATEGIES[name].make(**{k: v for k, v in given.items() if v is not None})


def topologies(name: str, asked: list[str] | None) -> list[str | None]:
    """On which ones it is to be run; None: it has none, or its own default."""
    return list(asked) if asked and "topology" in STRATEGIES[name].options else [None]
