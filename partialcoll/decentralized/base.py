# SPDX-License-Identifier: Apache-2.0
"""What all processes have in common: a model, gradient steps, averages over all ranks, and a state
to go on from."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from .._core import checks
from ..errors import StateError
from .averages import AveragedModel
from .local_model import Counts, LearningRate, check_model

__all__ = ["Counts", "LearningRate", "Process", "check_model"]

P = TypeVar("P", bound="Process")


class Process(AveragedModel):
    """One rank of an optimization process on a flat vector. See the subclasses.

    Parameters
    ----------
    x : numpy array
        The first model, float32 or float64, one dimension; copied. The same on all ranks, or
        made so by `average_models`.
    learning_rate : float or callable
        What `step` multiplies gradients by, or a function of the number of steps so far.
    total : GlobalSum or None
        For what is collective: `averaged_model`, `average_models`, `consensus_distance`.

    In a with-statement the process is started, and freed at the end.
    """

    @property
    def stats(self) -> Counts:
        """A copy of the counts."""
        return Counts(**vars(self._counts))

    @property
    def exchange_stats(self) -> Any:
        """Counts of the buffer that the process averages over, after its last event; None if it
        has none. Any thread may ask."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here, as copies. Local.

        For a checkpoint of all ranks that belongs together, `average_models` before.
        """
        with self._at_rest():
            self._settle()
            return {
                "model": self._settled().copy(),
                "steps": self._counts.steps,
                **self._more_state(),
            }

    def state_of_model(self) -> dict[str, Any]:
        """As `state_dict`, of a process that begins anew with `model`: right after `average_models`
        a state that belongs together, even if others have gone on since. Local."""
        return {"model": self.model.copy(), "steps": self._counts.steps, **self._new_state()}

    def _new_state(self) -> dict[str, Any]:
        """`_more_state` of one that begins with `model`."""
        return self._more_state()

    def begin_at(self, steps: int) -> None:
        """Count `steps` from here, as another rank does: boundaries are where its are. Local."""
        self._counts.steps = checks.count("steps", steps) if steps else 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, which `state_dict` has returned. Local. KeyError, TypeError or
        ValueError if it does not fit; the process is then as it was."""
        needed = {"model", "steps", *self._more_state()}
        if set(state) != needed:
            raise KeyError(f"state: expected {sorted(needed)}, got {sorted(state)}")
        self._check_update("state['model']", state["model"])
        for name, value in self._more_state().items():
            if isinstance(value, np.ndarray):
                self._check_update(f"state[{name!r}]", state[name])
        with self._at_rest():
            self._settle()
            self._reset(state["model"])
            self._counts.steps = int(state["steps"])
            self._load_more(state)

    def _more_state(self) -> dict[str, Any]:
        return {}

    def _load_more(self, state: Mapping[str, Any]) -> None:
        pass

    def Free(self) -> None:
        """Stop, and free what the process has made itself: not the buffers and handles that it
        was given. Idempotent."""
        self.stop()
        self._freed = True

    def __enter__(self: P) -> P:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.Free()
        except StateError:
            if kind is None:  # else the thread's error would hide this one
                raise
