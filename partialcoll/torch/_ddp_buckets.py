# SPDX-License-Identifier: Apache-2.0
"""What DistributedDataParallel hands to its communication hook, and what it is owed.

DDP calls the hook once for each bucket, in the middle of backward, and takes no error for an
answer: a hook that raises, or a future that fails, leaves its reducer in pieces. So every future is
completed, whatever happens, with the local gradient if there is nothing better, and an error is
raised when DDP has finished, out of the same backward() if that can be.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable

import torch

from .ops.futures import new_future

logger = logging.getLogger("partialcoll")


class Bucket:
    """What the hook was given in one call, without the bucket itself, which is DDP's."""

    def __init__(self, bucket: Any) -> None:
        self.buffer: torch.Tensor = bucket.buffer()
        self.future: Any = new_future([self.buffer])
        self.parameters: list[torch.Tensor] = bucket.parameters()
        self.ids = [id(parameter) for parameter in self.parameters]
        self.gradients: list[torch.Tensor] = []  # flat views of the buffer, in its order
        self.places: list[int] = []  # of the parameters that were deposited

    def look(self, bucket: Any) -> None:
        """TypeError for gradients that cannot be added up."""
        if self.buffer.layout != torch.strided:
            raise TypeError(
                "DistributedDataParallel: a bucket is sparse, which is not supported; make its "
                "layer with sparse=False"
            )
        self.gradients = [gradient.view(-1) for gradient in bucket.gradients()]
        for gradient, parameter in zip(self.gradients, self.parameters):
            if gradient.dtype != parameter.dtype:
                raise TypeError(
                    f"DistributedDataParallel: expected gradients of their parameters' dtype, "
                    f"got {gradient.dtype} for {parameter.dtype}"
                )


class Buckets:
    """Those of the step under way."""

    def __init__(self) -> None:
        self.here: list[Bucket] = []

    def add(self, bucket: Bucket) -> None:
        """One more. If a step before this one broke off, nobody waits for its futures."""
        if not self._seen().isdisjoint(bucket.ids):
            self.here.clear()
        self.here.append(bucket)

    def _seen(self) -> set[int]:
        return {key for bucket in self.here for key in bucket.ids}

    def are_all(self, bucket: Any, parameters: Callable[[], list[torch.Tensor]]) -> bool:
        """Was this the last? The bucket says so, but for the first step of a static graph: there
        all of them are number 0 and none is the last (torch 2.13). `parameters` of all of them."""
        if bucket.is_last():
            return True
        if bucket.index() != 0 or len(self.here) == 1:
            return False
        return self._seen().issuperset(map(id, parameters()))

    def complete(self) -> None:
        """All futures, with what is in their buckets now."""
        for bucket in self.here:
            bucket.future.set_result(bucket.buffer)
        self.here.clear()


class Failure:
    """An error of the hook that nobody has heard of yet."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        """What is raised within is noted, and goes no further."""

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if error is not None:
            self.note(error)
        return error is not None

    def note(self, error: BaseException) -> None:
        """Into the log; the first one is raised later."""
        logger.error("partial_allreduce_hook: %s: %s", type(error).__name__, error)
        if self._error is None:
            self._error = error

    def raise_after_backward(self) -> None:
        """When DDP has finished, which it will have asked for in this pass: so ask in a callback.
        Where no backward pass is under way, whoever calls `raise_now` hears of it."""
        if self._error is None:
            return
        engine = torch.autograd.Variable._execution_engine
        with contextlib.suppress(RuntimeError):
            engine.queue_callback(lambda: engine.queue_callback(self.raise_now))

    def raise_now(self) -> None:
        """Once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
