# SPDX-License-Identifier: Apache-2.0
"""The counts of a distributed optimizer, and their output to tqdm or TensorBoard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable


@dataclass(repr=False)
class Metrics:
    """Counts of this rank since the optimizer was made, up to the call of `metrics()`.

    `steps`: own gradients deposited. `rounds`: updates applied, for rounds with a gradient of some
    rank; with a decentralized strategy own updates. `included`: own gradients that have reached an
    applied round. `wait_s`: seconds spent waiting for rounds; with a decentralized strategy seconds
    that steps spent on anything but the update. `resyncs`: times that this rank took the state of
    another one. `skipped`: own gradients that were not finite, and of which nothing was deposited.
    `copied`: gradients found in memory of the program's own, which cost a copy each. `failed`: with
    ``on_failure="continue"`` ranks that had died before the last round; with a decentralized
    strategy ranks of whose death this rank knows.

    With `Allreduce` and `Eager`, and of a `PartialState`: `active`: contributions in the applied
    rounds, of all ranks. `lag`: rounds that were complete, but not yet applied, at the end of the
    last step. `lost`: rounds whose results were gone before this rank came to them
    (``deliver="all"``).

    With a decentralized strategy: `communications`, `received`, `refused`: averages or messages
    that this rank began and that went through; those of others that came here; those that the peer
    had no room for, and void rounds. With a ``rate``: `asked`, `achieved`, `backlog`, `given_up`:
    communications that the own steps have called for on this rank; of these, those that were made,
    that are still to come, and that were dropped, since too many were waiting or the models were
    averaged exactly (a warning says when fewer than three quarters are made). `fallbacks`: with a
    codec, blocks that did not decode, and were read again with more bits.
    """

    steps: int = 0
    rounds: int = 0
    included: int = 0
    wait_s: float = 0.0
    resyncs: int = 0
    skipped: int = 0
    copied: int = 0
    failed: tuple[int, ...] = ()

    @property
    def included_ratio(self) -> float:
        """Part of the own gradients that has reached an applied round; 1 before the first."""
        return self.included / self.steps if self.steps else 1.0

    def __repr__(self) -> str:
        averages = [name for name in ("included_ratio", "mean_active") if hasattr(self, name)]
        shown = {name: round(getattr(self, name), 3) for name in averages}
        words = ", ".join(f"{name}={value!r}" for name, value in {**vars(self), **shown}.items())
        return f"Metrics({words})"


@dataclass(repr=False)
class RoundMetrics(Metrics):
    """The counts of a strategy whose ranks apply the same rounds."""

    active: int = 0
    lag: int = 0
    lost: int = 0

    @property
    def mean_active(self) -> float:
        """Ranks in an applied round, on average; 0 before the first."""
        return self.active / self.rounds if self.rounds else 0.0


@dataclass(repr=False)
class LocalMetrics(Metrics):
    """The counts of a strategy whose ranks have models of their own."""

    communications: int = 0
    received: int = 0
    refused: int = 0
    asked: int = 0
    achieved: int = 0
    backlog: int = 0
    given_up: int = 0
    fallbacks: int = 0


_SHOWN = (
    *("mean_active", "included_ratio", "wait_s", "lag", "lost", "skipped"),
    *("communications", "received", "refused"),
)


def show_in_tqdm(bar: Any, every: int = 10) -> Callable[[Any], None]:
    """An ``on_step=`` that shows the metrics behind a tqdm bar, `bar`, in one step of `every`."""

    def show(opt: Any) -> None:
        m = opt.metrics()
        if m.steps % every == 0:
            own = {"included": f"{m.included_ratio:.3f}"}
            if isinstance(m, RoundMetrics):
                bar.set_postfix(active=f"{m.mean_active:.1f}", **own, lag=m.lag)
            else:
                bar.set_postfix(**own, communications=m.communications)

    return show


def write_to_tensorboard(writer: Any, every: int = 10) -> Callable[[Any], None]:
    """An ``on_step=`` that writes the metrics with `writer`, a
    `torch.utils.tensorboard.SummaryWriter`, at the number of the round, in one step of `every`."""

    def write(opt: Any) -> None:
        m = opt.metrics()
        if m.steps % every == 0:
            for name in filter(lambda name: hasattr(m, name), _SHOWN):
                writer.add_scalar(f"partialcoll/{name}", getattr(m, name), opt.round)

    return write
