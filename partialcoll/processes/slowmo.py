# SPDX-License-Identifier: Apache-2.0
"""SlowMo: slow momentum around any other process.

Source: Wang, Tantia, Ballas, Rabbat, "SlowMo: Improving Communication-Efficient Distributed SGD
with Slow Momentum", ICLR 2020, Algorithm 1. Every tau steps of the inner process: the exact average
x_tau of all models, u = beta u + (x_0 - x_tau)/gamma, and everybody goes on from
x_0 - alpha gamma u; x_0 is where the outer step began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

from ._exchange import Array, Steps
from ._process import Counts, Process, check_count, check_number


class SlowMo(Process):
    """Slow momentum around a process.

    Parameters
    ----------
    inner : Process
        Any of the others, made with a `total`. It must not be stepped by itself any more.
    tau : int
        Inner steps to an outer one, which waits for all ranks.
    beta : float
        Slow momentum, from 0 to 1. 0 with alpha = 1: the inner process with an exact average
        every tau steps.
    alpha : float
        Slow learning rate; the paper's experiments have 1.

    All ranks must begin with the same model: `synchronise` makes sure. gamma is the inner
    process's learning rate. Memory: two vectors besides the inner process.
    """

    def __init__(
        self, inner: Process, *, tau: int = 12, beta: float = 0.7, alpha: float = 1.0
    ) -> None:
        if not isinstance(inner, Process):
            raise TypeError(f"inner: expected a process, got {type(inner).__name__}")
        if inner._total is None:
            raise ValueError("inner: expected a process made with total=Total.over(comm), got None")
        super().__init__(inner.model, learning_rate=inner._learning_rate, total=inner._total)
        self._inner = inner
        self._tau = check_count("tau", tau)
        self._beta = check_number("beta", beta, 0, 1)
        self._alpha = check_number("alpha", alpha, 0)
        self._slow = np.zeros_like(self._x)  # u
        # self._x is x_0, where the outer step began.

    @property
    def inner(self) -> Process:
        """The inner process."""
        return self._inner

    @property
    def model(self) -> Array:
        """The inner process's."""
        return self._inner.model

    @property
    def learning_rate(self) -> float:
        """The inner process's, for the next step."""
        return self._inner.learning_rate

    def lend(self) -> Array:
        """The inner process's model; see `Process.lend`."""
        return self._inner.lend()

    def hand_over_changes(self) -> None:
        """The inner process's."""
        self._inner.hand_over_changes()

    def complete(self) -> None:
        """The inner process's. Collective."""
        self._inner.complete()

    def begin(self) -> None:
        """The inner process's."""
        self._inner.begin()

    def advancing(self, update: Array) -> Steps[None]:
        """`apply` as a generator: waits where the inner process does, and every tau steps."""
        yield from self._around(self._inner.advancing(update))

    def advancing_in_place(self) -> Steps[None]:
        """`apply_in_place` as a generator."""
        yield from self._around(self._inner.advancing_in_place())

    def _around(self, inner_step: Steps[None]) -> Steps[None]:
        gamma = self._inner.learning_rate
        yield from inner_step
        self._counts.steps += 1
        if self._counts.steps % self._tau == 0:
            # Ranks may have come to different learning rates, by steps that they have left out;
            # models and momentum have to be the same all the same.
            rates = yield from self._collective().summing(np.array([gamma, 1.0]))
            mean_rate = float(rates[0] / rates[1])
            yield from self.replacing(lambda mean: self._outer(mean, mean_rate))

    def _outer(self, mean: Array, gamma: float) -> Array:
        if not gamma > 0:
            raise ValueError(f"learning_rate: expected above 0 at an outer step, got {gamma}")
        self._slow *= self._beta
        self._slow += (self._x - mean) / gamma
        return self._x - (self._alpha * gamma) * self._slow

    def replacing(self, change: Callable[[Array], Array]) -> Steps[Array]:
        """Generator: every rank's model becomes `change` of the exact average, and that is where
        the outer step begins. Collective."""
        model = yield from self._inner.replacing(change)
        np.copyto(self._x, model)
        return model

    def begin_anew(self, model: Array) -> None:
        """Without momentum, too. Collective."""
        super().begin_anew(model)
        self._slow.fill(0)

    def averaged_model(self) -> Array:
        """The average of all ranks' models, exactly. Collective."""
        return self._inner.averaged_model()

    def communicate(self) -> bool:
        """The inner process's."""
        return self._inner.communicate()

    def next_event(self) -> float | None:
        """The inner process's."""
        return self._inner.next_event()

    def start(self) -> None:
        """Start the inner process's communication thread. Local; idempotent."""
        self._inner.start()

    def stop(self) -> None:
        """Stop the inner process's communication thread. Local; idempotent."""
        self._inner.stop()

    @property
    def stats(self) -> Counts:
        """A copy of the inner process's counts."""
        return self._inner.stats

    def begin_at(self, steps: int) -> None:
        """Both count steps from here. Local."""
        super().begin_at(steps)
        self._inner.begin_at(steps)

    def state_dict(self) -> dict[str, Any]:
        """Of both: what `load_state_dict` needs to go on from here, as copies. Local."""
        return {**super().state_dict(), "inner": self._inner.state_dict()}

    def state_of_model(self) -> dict[str, Any]:
        """Of both. Local."""
        state = {"model": self._x.copy(), "steps": self._counts.steps, **self._more_state()}
        return {**state, "inner": self._inner.state_of_model()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Local."""
        if "inner" not in state:
            raise KeyError("state: expected an entry 'inner', got none")
        super().load_state_dict({k: v for k, v in state.items() if k != "inner"})
        self._inner.load_state_dict(state["inner"])

    def _more_state(self) -> dict[str, Any]:
        return {"slow": self._slow.copy()}

    def _load_more(self, state: Mapping[str, Any]) -> None:
        np.copyto(self._slow, state["slow"])

    def Free(self) -> None:
        """Free the inner process. Idempotent."""
        self._inner.Free()
        super().Free()
