# SPDX-License-Identifier: Apache-2.0
"""The registry of strategies for `bench train`, `sim gossip` and the command line: how each one is
made, which options it has, and which ranks a rank waits for.

torch, MPI and the library are imported when one is made: the command line names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .delays import Meetings, Waits, everybody, groups, neighbors

_NOBODY = Waits.NOBODY


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
    simulated : tuple of str
        Its names in `sim gossip`, which has a function for each (tools/sim/gossip.py).
    """

    make: Callable[..., Any]
    waits: Waits | Callable[[Any, int], Meetings]
    replicas: bool = False
    options: tuple[str, ...] = ()
    both: int = 1
    survives: bool = False
    simulated: tuple[str, ...] = ()


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


def _pairs(make: Callable[..., Any], *simulated: str, every: str = "rate") -> Choice:
    """Return a strategy whose ranks average in pairs, without waiting for each other."""
    return Choice(make, _NOBODY, options=("topology", every), both=2, simulated=simulated)


STRATEGIES: dict[str, Choice] = {
    "allreduce": Choice(
        _ours("Allreduce"), Waits.ALL, replicas=True, survives=True, simulated=("allreduce",)
    ),
    "eager-solo": _eager("solo", Waits.FIRST),
    "eager-majority": _eager("majority", Waits.DRAWN),
    "eager-full": _eager("full", Waits.ALL),
    "eager-solo-all": _eager("solo", _NOBODY, deliver="all"),
    "adpsgd": _pairs(_ours("ADPSGD"), "adpsgd"),
    "dpsgd": Choice(_ours("DPSGD"), _neighbors, options=("topology",), simulated=("dpsgd",)),
    "swarm": _pairs(_ours("Swarm"), "swarm", "swarm-registers", every="local_steps"),
    "swarm-8bit": _pairs(_swarm_8bit, every="local_steps"),
    "a2cid2": _pairs(_ours("A2CiD2"), "a2cid2"),
    "a2cid2-paper": _pairs(_ours("A2CiD2", variant="paper"), "a2cid2-paper"),
    "a2cid2-baseline": _pairs(_ours("A2CiD2", accelerated=False), "baseline"),
    "moshpit": Choice(
        _ours("Moshpit"), _group, options=("grid", "local_steps"), simulated=("moshpit",)
    ),
    "sgp": Choice(_ours("SGP"), _NOBODY, options=("rate",), simulated=("sgp",)),
    "localsgd": Choice(
        _ours("LocalSGD"),
        lambda strategy, ranks: everybody(ranks, strategy.local_steps),
        options=("local_steps",),
        simulated=("localsgd",),
    ),
    "slowmo": Choice(
        _slowmo,
        lambda strategy, ranks: everybody(ranks, strategy.inner.local_steps, strategy.tau),
        options=("local_steps",),
        simulated=("slowmo",),
    ),
}

SIMULATED = {name: choice for choice in STRATEGIES.values() for name in choice.simulated}


def with_option(word: str) -> str:
    """Return the names of the strategies that have this option, as a text."""
    return ", ".join(name for name, choice in STRATEGIES.items() if word in choice.options)


def make(name: str, options: SimpleNamespace, topology: str | None) -> Any:
    """Return the strategy of this name, with the options of the command line; the others keep the
    strategy's own defaults."""
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
    """Return the topologies on which the strategy runs; None stands for its own default, or for no
    topology."""
    return list(asked) if asked and "topology" in STRATEGIES[name].options else [None]
