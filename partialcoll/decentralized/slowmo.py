# SPDX-License-Identifier: Apache-2.0
"""SlowMo: slow momentum around any other process.

Source: Wang, Tantia, Ballas, Rabbat, "SlowMo: Improving Communication-Efficient Distributed SGD
with Slow Momentum", ICLR 2020, Algorithm 1. Every tau steps of the inner process: the exact average
x_tau of all models, u = beta u + (x_0 - x_tau)/gamma, and everybody goes on from
x_0 - alpha gamma u; x_0 is where the outer step began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from .._core import checks
from .._core.mpi import MPI
from .process import Array, PeriodicJoin, Process, Steps
from .strategy import LocalStrategy, Setup


def _checked(tau: Any, beta: Any, alpha: Any) -> tuple[int, float, float]:
    return (
        checks.count("tau", tau),
        checks.number("beta", beta, 0, 1),
        checks.number("alpha", alpha, 0),
    )


@dataclass(frozen=True)
class SlowMo(LocalStrategy):
    """Slow momentum around any of these: every tau steps the exact average of all ranks' models,
    and an outer step with momentum from where the last one ended.

    `inner` is a `LocalStrategy`: `LocalSGD(...)`, `SGP()`, ... `tau` (int): steps between two outer
    ones, each of which waits for all ranks. `beta`: slow momentum, from 0 to 1; 0 with alpha = 1 is
    the inner one with an exact average every tau steps. `alpha`: slow learning rate, at least 0; 1
    in the paper's experiments. The learning rate of the algorithm is the inner one's; of an
    optimizer, its first group's. Source: Wang et al., ICLR 2020, Algorithm 1.
    """

    inner: LocalStrategy
    tau: int = 12
    beta: float = 0.7
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.inner, LocalStrategy) or isinstance(self.inner, SlowMo):
            raise TypeError(
                "inner: expected one of the decentralized strategies, such as LocalSGD() or SGP(), "
                f"got {self.inner!r}"
            )

    @property
    def clip_norm(self) -> float | None:  # type: ignore[override]
        """The value of the inner strategy."""
        return self.inner.clip_norm

    @property
    def threaded(self) -> bool:  # type: ignore[override]
        """Whether the inner strategy has a communication thread."""
        return self.inner.threaded

    @property
    def rests(self) -> bool:
        return self.inner.rests

    def describe(self, ranks: int) -> str:
        return f"SlowMo({self.inner.describe(ranks)}, {self.tau}, {self.beta}, {self.alpha})"

    def check(self, comm: MPI.Intracomm) -> None:
        self.inner.check(comm)
        super().check(comm)
        if self.inner.on_failure != "raise":
            raise ValueError(
                "inner: expected on_failure='raise' within SlowMo, whose outer steps need all "
                f"ranks, got {self.inner.on_failure!r}"
            )

    def check_values(self) -> None:
        _checked(self.tau, self.beta, self.alpha)

    def build(self, x: Array, comm: MPI.Intracomm, **common: Any) -> Setup:
        setup = self.inner.build(x, comm, **common)
        process = SlowMoProcess(setup.process, tau=self.tau, beta=self.beta, alpha=self.alpha)
        return Setup(process, PeriodicJoin(common["total"], self.tau, comm.size), setup.owned)


def _of_inner(name: str) -> Any:
    """Return the property or the method without arguments of the inner process."""
    own = getattr(Process, name)

    def get(self: SlowMoProcess) -> Any:
        found = getattr(self.inner, name)
        return found() if callable(own) else found

    get.__name__, get.__doc__ = name, own.__doc__
    return get if callable(own) else property(get)


class SlowMoProcess(Process):
    """Slow momentum around a process, `inner`: any of the others, made with a `total`, which must
    not be stepped by itself any more. `tau`, `beta`, `alpha`: see `SlowMo`. All ranks must begin
    with the same model (`average_models`). gamma is the inner process's learning rate. Memory: two
    vectors besides the inner process."""

    def __init__(
        self,
        inner: Process,
        *,
        tau: int = SlowMo.tau,
        beta: float = SlowMo.beta,
        alpha: float = SlowMo.alpha,
    ) -> None:
        checks.instance("inner", inner, Process, "a process")
        if inner._total is None:
            raise ValueError(
                "inner: expected a process made with total=GlobalSum.over(comm), got None"
            )
        super().__init__(inner.model, learning_rate=inner._learning_rate, total=inner._total)
        self.inner = inner
        self._tau, self._beta, self._alpha = _checked(tau, beta, alpha)
        self._slow = np.zeros_like(self._x)  # u
        # self._x is x_0, where the outer step began.

    model, learning_rate = _of_inner("model"), _of_inner("learning_rate")
    stats, exchange_stats = _of_inner("stats"), _of_inner("exchange_stats")
    lend, hand_over_changes = _of_inner("lend"), _of_inner("hand_over_changes")
    complete, begin = _of_inner("complete"), _of_inner("begin")
    communicate, next_event = _of_inner("communicate"), _of_inner("next_event")
    start, stop = _of_inner("start"), _of_inner("stop")
    averaged_model = _of_inner("averaged_model")

    def advancing(self, update: Array | None = None) -> Steps[None]:
        """See `Process.advancing`: waits where the inner process does, and every tau steps."""
        gamma = self.inner.learning_rate
        yield from self.inner.advancing(update)
        self._counts.steps += 1
        if self._counts.steps % self._tau == 0:
            # Ranks may have come to different learning rates, by steps that they have left out;
            # models and momentum have to be the same all the same.
            rate = np.array([gamma])
            yield from self._collective().averaging([rate])
            yield from self.replacing(lambda mean: self._outer(mean, float(rate[0])))

    def _outer(self, mean: Array, gamma: float) -> Array:
        if not gamma > 0:
            raise ValueError(f"learning_rate: expected above 0 at an outer step, got {gamma}")
        self._slow *= self._beta
        self._slow += (self._x - mean) / gamma
        return self._x - (self._alpha * gamma) * self._slow

    def replacing(self, change: Callable[[Array], Array]) -> Steps[Array]:
        """See `Process.replacing`: the outer step begins at the new model. Collective."""
        model = yield from self.inner.replacing(change)
        np.copyto(self._x, model)
        return model

    def begin_anew(self, model: Array) -> None:
        """See `Process.begin_anew`; without momentum."""
        super().begin_anew(model)
        self._slow.fill(0)

    def begin_at(self, steps: int) -> None:
        """See `Process.begin_at`: both count from here."""
        super().begin_at(steps)
        self.inner.begin_at(steps)

    def state_dict(self) -> dict[str, Any]:
        """See `Process.state_dict`: of both."""
        return {**super().state_dict(), "inner": self.inner.state_dict()}

    def state_of_model(self) -> dict[str, Any]:
        state = {"model": self._x.copy(), "steps": self._counts.steps, **self._more_state()}
        return {**state, "inner": self.inner.state_of_model()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "inner" not in state:
            raise KeyError("state: expected an entry 'inner', got none")
        super().load_state_dict({k: v for k, v in state.items() if k != "inner"})
        self.inner.load_state_dict(state["inner"])

    def _kept(self) -> dict[str, Array]:
        return {"slow": self._slow}

    def Free(self) -> None:
        """Free the inner process. Idempotent."""
        self.inner.Free()
        super().Free()
