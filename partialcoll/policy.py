# SPDX-License-Identifier: Apache-2.0
"""Policies: when a round may complete.

A policy is an object or its text; both are accepted wherever one is expected.

>>> str(Quorum(0.75, linger=50e-6))
'quorum:0.75,linger=50us'
>>> parse("first_of:2")
FirstOf(2)

All take the same modifiers, by keyword: those of `Policy`.
"""

from __future__ import annotations

import copy
import numbers
from typing import Any, ClassVar

from ._core import checks
from ._core.pure import check, ffi, lib

_MODIFIERS = ("linger", "deadline", "max_staleness")


class Policy:
    """Base of the policies. Compare, hash and print them freely; do not change them.

    All take these modifiers, which are attributes as well. TypeError or ValueError names the one
    that is wrong. `linger`: seconds to wait after the policy is met, or until all ranks have
    arrived; at most 1e6, 0: none. `deadline`: the round completes with whoever is there so many
    seconds after the first arrival, even if the policy is not met; `Round.below_quorum` says so
    then. It wins over the other modifiers; at most 1e6, 0: none. `max_staleness`: no rank is absent
    from more than so many consecutive rounds, the next one waits for a deposit of it; an int, 0: no
    such limit.
    """

    _name: ClassVar[str] = ""

    def __init__(
        self, *, linger: float = 0.0, deadline: float = 0.0, max_staleness: int = 0
    ) -> None:
        self._complete([], linger, deadline, max_staleness)

    def _complete(
        self, arguments: list[str], linger: float, deadline: float, max_staleness: int
    ) -> None:
        checks.number("linger", linger, 0, 1e6, what="seconds")
        checks.number("deadline", deadline, 0, 1e6, what="seconds")
        self.linger, self.deadline = float(linger), float(deadline)
        self.max_staleness = checks.integer(
            "max_staleness", max_staleness, 0, 2**31 - 1, what="a number of rounds"
        )
        self._arguments = arguments
        self._given = [f"{name}={vars(self)[name]!r}" for name in _MODIFIERS if vars(self)[name]]
        policy, text = ffi.new("pcoll_policy *"), ffi.new("char[]", 200)
        written = ":".join([self._name, *arguments])
        check(lib.pcoll_policy_parse(",".join([written, *self._given]).encode(), policy))
        check(lib.pcoll_policy_format(policy, text, 200))
        self._text = str(ffi.string(text).decode())

    def __str__(self) -> str:
        """The policy in the text form that every option and variable takes."""
        return self._text

    def replace(self, **modifiers: Any) -> Policy:
        """Return the same policy with some `modifiers` (of `Policy`) changed:
        ``Solo().replace(linger=1e-3)``."""
        other = copy.copy(self)
        given = {**{name: getattr(self, name) for name in _MODIFIERS}, **modifiers}
        other._complete(self._arguments, **given)
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._arguments + self._given)})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)


class Solo(Policy):
    """Any rank that arrives starts the round, without waiting for another. Modifiers: see `Policy`.
    Source: Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial
    Collective Operations", PPoPP 2020, section 4.1."""

    _name = "solo"


class Majority(Policy):
    """One rank, drawn for each round and the same on all ranks, starts the round; on average half
    of the ranks arrive before it. Modifiers: see `Policy`. Source: PPoPP 2020 (see `Solo`),
    section 4.2."""

    _name = "majority"


class Full(Policy):
    """The round completes when all ranks have arrived: an ordinary allreduce. Modifiers as of
    `Policy`: with a deadline it completes without those that are later than that."""

    _name = "full"


class Quorum(Policy):
    """The round completes when `ranks` ranks have arrived, exactly: never with fewer, unless fewer
    are live, ranks join or leave in it (which count), or at a deadline.

    An int is a number of ranks, from 1 to the size of the communicator; a float is a fraction of
    them, above 0 and at most 1.0, rounded up. Where fewer ranks are live (see `join` and `leave`),
    all of those are needed. Deposits stored from before ride along but do not count. Modifiers as
    of `Policy`.
    """

    _name = "quorum"

    def __init__(
        self,
        ranks: int | float,
        *,
        linger: float = 0.0,
        deadline: float = 0.0,
        max_staleness: int = 0,
    ) -> None:
        checks.real("quorum", ranks, what="a number of ranks or a fraction")
        self.ranks = int(ranks) if isinstance(ranks, numbers.Integral) else float(ranks)
        self._complete([repr(self.ranks)], linger, deadline, max_staleness)


class _Drawn(Policy):
    def __init__(
        self, m: int, *, linger: float = 0.0, deadline: float = 0.0, max_staleness: int = 0
    ) -> None:
        self.m = checks.integer("quorum", m, what="a number of ranks")
        self._complete([repr(self.m)], linger, deadline, max_staleness)


class FirstOf(_Drawn):
    """The first of `m` ranks (1 to all), drawn for each round, starts it. Modifiers: see
    `Policy`. On average (P+1)/(m+1) ranks have arrived by then. ``FirstOf(1)`` is `Majority`; with
    m = P it is `Solo`."""

    _name = "first_of"


class LastOf(_Drawn):
    """The last of `m` ranks (1 to all), drawn for each round, starts it. Modifiers: see
    `Policy`. On average m(P+1)/(m+1) ranks have arrived by then. ``LastOf(1)`` is `Majority`; with
    m = P it is `Full`."""

    _name = "last_of"


_KINDS: dict[int, type[Policy]] = {
    getattr(lib, f"PCOLL_{kind._name.upper()}"): kind
    for kind in (Solo, Majority, Full, Quorum, FirstOf, LastOf)
}


def parse(text: str) -> Policy:
    """Return the policy that a `text` names. Raises ValueError for anything unknown."""
    policy = ffi.new("pcoll_policy *")
    checks.text("quorum", text, what="the text of a policy")
    check(lib.pcoll_policy_parse(text.encode(), policy))
    kind, modifiers = _KINDS[policy.kind], {name: getattr(policy, name) for name in _MODIFIERS}
    counts: list[Any] = []
    if issubclass(kind, (Quorum, _Drawn)):
        counts = [policy.count or policy.fraction]
    return kind(*counts, **modifiers)


def as_policy(value: Policy | str) -> Policy:
    """Return the policy that `value` is or names; else TypeError or ValueError about ``quorum``."""
    if isinstance(value, Policy):
        return value
    if isinstance(value, str):
        return parse(value)
    raise TypeError(f"quorum: expected a policy or a string, got {type(value).__name__}")
