# SPDX-License-Identifier: Apache-2.0
"""Averages over all ranks' models: exact ones, with everything that is under way."""

from __future__ import annotations

from typing import Callable

import numpy as np

from ..errors import StateError
from .exchange import Array, Steps, drive
from .global_sum import GlobalSum
from .local_model import LocalModel


class AveragedModel(LocalModel):
    """A model that can be averaged with the other ranks'. All of it is collective."""

    def _mass(self) -> tuple[Array, float]:
        """Vector and weight of this rank; the average is the sum of vectors over that of weights,
        and no communication changes either."""
        return self._settled(), 1.0

    def _settled(self) -> Array:
        """This rank's model after `_settle`."""
        return self._x

    def _reset(self, model: Array) -> None:
        """From now on this is the model; nothing from before is to have an effect."""
        np.copyto(self._x, model)

    def _collective(self) -> GlobalSum:
        self._check_usable()
        if self._total is None:
            raise StateError(
                "total: expected GlobalSum.over(comm) for what is collective, got None"
            )
        return self._total

    def _gathering(self, total: GlobalSum) -> Steps[None]:
        """Wait for the other ranks, if they may need this one as long as they make steps."""
        yield from ()

    def _averaging(self, total: GlobalSum) -> Steps[Array]:
        """At rest. The first meeting: everything that was sent has come."""
        yield from self._completing()
        yield from total.meeting()
        self._settle()
        vector, weight = self._mass()
        model = np.array(vector, np.float64)
        yield from total.averaging([model], weight, wide=self._x.itemsize > 4)
        return model.astype(self._x.dtype)

    def averaged_model(self) -> Array:
        """The average of all ranks' models, exactly: with all that is under way. Collective."""
        total = self._collective()
        drive(self._gathering(total))
        with self._at_rest():
            return drive(self._averaging(total))

    def replacing(self, change: Callable[[Array], Array]) -> Steps[Array]:
        """Generator: every rank's model becomes `change` of the exact average, a function that is
        given that vector and returns one like it. Collective."""
        total = self._collective()
        yield from self._gathering(total)
        with self._at_rest():
            model = change((yield from self._averaging(total)))
            self._reset(model)
            yield from total.meeting()  # before that nobody may see another's old model
        return model

    def average_models(self) -> None:
        """Every rank's model becomes the exact average. Collective. Once before the training
        and once after it is what the gossip processes need."""
        drive(self.replacing(lambda model: model))

    def begin_anew(self, model: Array) -> None:
        """This rank's model becomes `model`, a vector like it, and nothing from before has an
        effect. Collective: every rank gives one."""
        drive(self.replacing(lambda mean: model))

    def consensus_distance(self) -> float:
        """The square root of ``mean_i |x_i - mean|^2`` over the ranks' models. Collective."""
        return drive(self.measuring())

    def measuring(self) -> Steps[float]:
        """Generator of `consensus_distance`."""
        distance = yield from self._collective().measuring(self.model)
        return distance
