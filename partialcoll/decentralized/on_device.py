# SPDX-License-Identifier: Apache-2.0
"""A process's model on a device. The process itself works on the host: gradients are copied there,
and what has become of the model is copied back."""

from __future__ import annotations

from typing import Any

from .base import Process


class OnDevice:
    """Makes the steps of a process with gradients that are on a device.

    Parameters
    ----------
    process : Process
        Made with the model as an array of the host.
    x : array of cupy, numba or torch on a CUDA device
        Of the model's shape and dtype; holds it from now on, for what the current stream is given
        next. TypeError or ValueError if it does not fit.

    Changes of `x` by somebody else are lost with the next step. docs/gpu.md says what is waited
    for.
    """

    def __init__(self, process: Process, x: Any) -> None:
        from .._core.device import as_device_buffer  # these load MPI
        from .._core.mirror import Twins

        self.process, self.model = process, x
        self._as_buffer, self._twins = as_device_buffer, Twins()
        self._fit("x", x, writable=True)
        self.refresh()

    def _fit(self, argument: str, array: Any, writable: bool = False) -> Any:
        buffer = self._as_buffer(argument, array, writable)
        own = self.process.model
        if buffer.array.shape != own.shape or buffer.array.dtype != own.dtype:
            raise ValueError(
                f"{argument}: expected shape {own.shape} and {own.dtype} as the model's, got "
                f"{buffer.array.shape} and {buffer.array.dtype}"
            )
        return buffer

    def refresh(self, stream: Any = None) -> None:
        """`model` becomes the process's, for what `stream` (of cupy or torch, or the number of a
        CUstream; None: the current one) is given next: after what was done to that one directly, as
        by `average_models`. Local."""
        own = self._twins.take("x", self._fit("x", self.model, writable=True), read=False)
        own[...] = self.process.model
        self._twins.land(stream, x=self.model)

    def step(self, gradient: Any, stream: Any = None) -> None:
        """As the process's, with the `gradient` at `model`, an array like it, when the `stream`
        (see `refresh`) has come so far."""
        self.process.step(self._pulled("gradient", gradient, stream))
        self.refresh(stream)

    def apply(self, update: Any, stream: Any = None) -> None:
        """As the process's, of an `update` on the device, with the `stream` as of `step`."""
        self.process.apply(self._pulled("update", update, stream))
        self.refresh(stream)

    def _pulled(self, argument: str, array: Any, stream: Any) -> Any:
        return self._twins.take(argument, self._fit(argument, array), stream=stream)

    def free(self) -> None:
        """Wait for the copies, and give back the memory for them; the process goes on. Local."""
        self._twins.free()
