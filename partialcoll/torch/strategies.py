# SPDX-License-Identifier: Apache-2.0
"""The strategies of `DistributedOptimizer` that combine the ranks' gradients into one update."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .._core import checks
from ..decentralized.strategy import Strategy, check_clip_norm
from ..policy import Full, Policy, as_policy


class RoundStrategy(Strategy):
    """A strategy whose ranks all apply the same updates, those of the rounds of one handle."""

    def __post_init__(self) -> None:
        check_clip_norm(self.clip_norm)
        checks.one_of("on_failure", self.on_failure, ("raise", "continue"))

    @property
    def policy(self) -> Policy:
        """When a round may complete: when all ranks have come."""
        return Full()

    def options(self) -> dict[str, Any]:
        """Return the options of the gradients' handle, see `partialcoll.Allreduce_init`."""
        names = ("deliver", "history", "algorithm", "domain", "progress", "on_failure", "seed")
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return {"quorum": self.policy, **given}

    @property
    def synchronous(self) -> bool:
        """Whether every update has the gradients of all ranks."""
        return isinstance(self.policy, Full) and not self.policy.deadline

    @property
    def early_bytes(self) -> int | None:
        """The size of the buckets that are sent while backward computes others; None: there are
        none, and all gradients are sent at the step."""
        return None


@dataclass(frozen=True)
class Allreduce(RoundStrategy):
    """Synchronous SGD: the average over all ranks, in every step; what Horovod does.

    Parameters
    ----------
    clip_norm : float or None
        The averaged gradient is scaled so that its 2-norm over all parameters is at most this.
    algorithm, domain, progress : str or None
        Of the allreduce, see `partialcoll.Allreduce_init`.
    overlap : bool
        Send gradients while backward computes others, in buckets that are filled from the last
        parameter on. What has been sent must not be changed any more: no GradScaler,
        ``non_finite="propagate"``; StateError where a program does. Worthwhile where moving the
        gradients takes long.
    bucket_bytes : int
        Of a bucket, at most, unless one parameter is larger.
    on_failure : "raise" or "continue"
        When a rank dies, see docs/faults.md: RankFailedError; or the others go on, and the average
        is that of who lives. Then without `overlap`, and gradients are dense.

    The only strategy with `synchronize` and `skip_synchronize`.
    """

    clip_norm: float | None = None
    algorithm: str | None = None
    domain: str | None = None
    progress: str | None = None
    overlap: bool = False
    bucket_bytes: int = 25 * 2**20
    on_failure: str = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on_failure == "continue" and self.overlap:
            raise ValueError(
                "overlap: expected False with on_failure='continue': a rank that dies would be in "
                "some buckets of a step and not in others"
            )
        checks.flag("overlap", self.overlap)
        checks.count("bucket_bytes", self.bucket_bytes, what="a number of bytes")

    @property
    def takes_sparse(self) -> bool:
        """Whether sparse gradients work: sent outside of rounds, they do not survive a death."""
        return self.on_failure == "raise"

    @property
    def early_bytes(self) -> int | None:
        return self.bucket_bytes if self.overlap else None

    def describe(self, ranks: int) -> str:
        return repr(self if self.overlap else dataclasses.replace(self, bucket_bytes=1))


@dataclass(frozen=True)
class Eager(RoundStrategy):
    """Eager-SGD: an update takes the gradients that are there; late ones ride in the next.

    Parameters
    ----------
    quorum : policy or str
        When a round may complete: "solo", "majority", "quorum:6", "full", ... with any of
        ",linger=50us,deadline=2s,max_staleness=8"; see `partialcoll.policy`.
    deliver : "one" or "all"
        "one": the t-th step applies round t, on every rank. "all": a step applies every round
        that this rank has not seen yet, so a rank that is always slow delays no other; ranks
        then make different numbers of steps, so loop ``for _ in opt.until(rounds)``.
    history : int
        Rounds kept. With "one" no rank lags more than that; with "all" a rank that lags more
        takes the state of an up-to-date rank, and one more than there are ranks are kept at least.
    linger, deadline, max_staleness
        In place of those in `quorum`: seconds, seconds, rounds.
    clip_norm : float or None
        The applied gradient (the sum of a round divided by the number of ranks) is scaled so
        that its 2-norm over all parameters is at most this.
    algorithm, domain, progress, seed
        Of the allreduce, see `partialcoll.Allreduce_init`.
    on_failure : "raise" or "continue"
        As of `Allreduce`; "continue" with deliver="one" only.

    Every rank applies the same rounds in the same order: replicas stay identical to the bit.
    Source: Li et al., PPoPP 2020, section 5.
    """

    quorum: Policy | str = "majority"
    deliver: str = "one"
    history: int = 8
    linger: float | None = None
    deadline: float | None = None
    max_staleness: int | None = None
    clip_norm: float | None = None
    algorithm: str | None = None
    domain: str | None = None
    progress: str | None = None
    seed: int = 0
    on_failure: str = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("deliver", self.deliver, ("one", "all"))
        if self.on_failure == "continue" and self.deliver == "all":
            raise ValueError(
                "deliver: expected 'one' with on_failure='continue': who has lost rounds takes the "
                "state of another rank, which may have died"
            )
        _ = self.policy  # raises

    @property
    def policy(self) -> Policy:
        """When a round may complete, modifiers included."""
        modifiers = ("linger", "deadline", "max_staleness")
        given = {n: getattr(self, n) for n in modifiers if getattr(self, n) is not None}
        policy = as_policy(self.quorum)
        return policy.replace(**given) if given else policy
