# SPDX-License-Identifier: Apache-2.0
"""The strategies of `bench train` and the command line: those of `decentralized.strategies`, and
those whose ranks apply the same rounds. Which options a strategy has, and which ranks a rank waits
for, follows from its class.

torch is imported when a strategy of rounds is made: the command line names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

from ....decentralized import GossipStrategy
from ....decentralized.strategies import NAMED
from ....grid import Grid
from ....topology import Topology
from .delays import Meetings, Waits, everybody, groups, neighbors

_OPTIONS = ("topology", "rate", "grid", "local_steps")  # of the command line


@dataclass(frozen=True)
class Choice:
    """A strategy that can be asked for. `make` makes the `partialcoll.torch.Strategy` from the
    options of the command line that it has (`options`, in its own words), where they were given.
    `waits`, for its limit by arithmetic, says whom a rank waits for in every step, or, from the
    strategy that was made and the number of ranks, when it meets whom. `replicas`: all ranks have
    the same parameters at equal rounds, and rounds are what they count; else each has a model of
    its own and counts its own steps. `both` ranks have a part in a communication which one of them
    has begun. `survives`: the others go on when a rank dies."""

    make: Callable[..., Any]
    waits: Waits | Callable[[Any, int], Meetings]
    replicas: bool = True
    options: tuple[str, ...] = ()
    survives: bool = True
    both: int = 1


def _rounds(name: str, waits: Waits, survives: bool = True, **more: Any) -> Choice:
    def make(**given: Any) -> Any:
        from .... import torch

        return getattr(torch, name)(**more, **given)

    return Choice(make, waits, options=("history",) if more else (), survives=survives)


def _meetings(strategy: Any, ranks: int) -> Meetings:
    inner = getattr(strategy, "inner", strategy)
    if hasattr(inner, "grid"):
        return groups(Grid(inner.grid, ranks), inner.local_steps)
    if hasattr(inner, "topology"):
        graph = Topology.make(inner.topology, ranks)
        return neighbors([graph.neighbors(rank) for rank in range(ranks)])
    periods = getattr(inner, "local_steps", None), getattr(strategy, "tau", None)
    return everybody(ranks, *filter(None, periods))


def _own_models(make: Callable[..., Any]) -> Choice:
    strategy = make()
    known = {field.name for field in fields(getattr(strategy, "inner", strategy))}
    options = tuple(name for name in _OPTIONS if name in known)
    waits = Waits.NOBODY if strategy.threaded else _meetings
    return Choice(make, waits, False, options, False, 1 + isinstance(strategy, GossipStrategy))


STRATEGIES: dict[str, Choice] = {
    "allreduce": _rounds("Allreduce", Waits.ALL),
    "eager-solo": _rounds("Eager", Waits.FIRST, quorum="solo"),
    "eager-majority": _rounds("Eager", Waits.DRAWN, quorum="majority"),
    "eager-full": _rounds("Eager", Waits.ALL, quorum="full"),
    "eager-solo-all": _rounds("Eager", Waits.NOBODY, False, quorum="solo", deliver="all"),
    **{name: _own_models(one) for name, one in NAMED.items() if name != "swarm-registers"},
}

# The methods of `sim gossip`, with the names of their strategies.
SIMULATED = {"allreduce": "allreduce", **{name: name for name in NAMED if name != "swarm-8bit"}}
SIMULATED["baseline"] = SIMULATED.pop("a2cid2-baseline")


def with_option(word: str) -> str:
    return ", ".join(name for name, choice in STRATEGIES.items() if word in choice.options)


def make(name: str, options: SimpleNamespace, topology: str | None) -> Any:
    """Return the strategy of this name, with the options that the command line gives."""
    given = {word: getattr(options, word, None) for word in STRATEGIES[name].options}
    if "pattern" in vars(options) and options.pattern.kills:
        given["on_failure"] = "continue"
    if "topology" in given:
        given["topology"] = topology
    if given.get("grid") not in (None, "auto"):
        given["grid"] = Grid(options.grid).sides
    return STRATEGIES[name].make(**{k: v for k, v in given.items() if v is not None})


def topologies(name: str, asked: list[str] | None) -> list[str | None]:
    """Return the topologies that the strategy runs on; None: its default, or it has none."""
    return list(asked) if asked and "topology" in STRATEGIES[name].options else [None]
