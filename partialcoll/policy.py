# SPDX-License-Identifier: Apache-2.0
"""Policies: when a round may complete.

A policy is an object or its text; both are accepted wherever one is expected.

>>> str(Majority())
'majority'
>>> parse("solo")
Solo()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ._ffi import check, ffi, lib


@dataclass(frozen=True)
class Policy:
    """Base of the policies. Compare, hash and print them freely."""

    _text: ClassVar[str] = ""

    def __str__(self) -> str:
        """The policy in the text form that every option and variable takes."""
        return self._text


@dataclass(frozen=True)
class Solo(Policy):
    """Any rank that arrives starts the round; it waits for nobody.

    Source: Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial
    Collective Operations", PPoPP 2020, section 4.1.
    """

    _text: ClassVar[str] = "solo"


@dataclass(frozen=True)
class Majority(Policy):
    """One rank, drawn anew for each round and the same on all ranks, starts the round.

    On average half of the ranks arrive before it. Source: PPoPP 2020 (see `Solo`), section 4.2.
    """

    _text: ClassVar[str] = "majority"


@dataclass(frozen=True)
class Full(Policy):
    """The round completes when all ranks have arrived: an ordinary allreduce."""

    _text: ClassVar[str] = "full"


_KINDS: dict[int, type[Policy]] = {
    lib.PCOLL_SOLO: Solo,
    lib.PCOLL_MAJORITY: Majority,
    lib.PCOLL_FULL: Full,
}


def parse(text: str) -> Policy:
    """The policy that a text names. Raises ValueError for anything unknown."""
    policy = ffi.new("pcoll_policy *")
    check(lib.pcoll_policy_parse(text.encode(), policy))
    return _KINDS[policy.kind]()


def as_policy(value: Policy | str) -> Policy:
    """A policy from an object or a text. Raises TypeError or ValueError, naming ``quorum``."""
    if isinstance(value, Policy):
        return value
    if isinstance(value, str):
        return parse(value)
    raise TypeError(f"quorum: expected a policy or a string, got {type(value).__name__}")


def fill(policy: Policy, struct: Any) -> None:
    """Write a policy into a C struct pcoll_policy."""
    check(lib.pcoll_policy_parse(str(policy).encode(), ffi.addressof(struct)))
