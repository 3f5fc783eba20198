# SPDX-License-Identifier: Apache-2.0
"""Flat memory for parameters and gradients: buffers, and for each tensor a view in one of them.

Gradients lie in one buffer for each dtype, or in several that can be sent one by one. The
parameters of a rank with a model of its own lie in one vector, whatever their dtypes.

`param.grad` is a view of the handle's send buffer from `zero_grad()` to `step()`, and a view of the
applied gradient from then to the next `zero_grad()`. A hook on each parameter, which autograd calls
when a gradient has been added, counts backward passes and moves what landed elsewhere.

             collect()                 restart(), show()               collect()
    param.grad:  | send buffer, from zero  | applied gradient ...          | next send buffer
                 zero_grad()  backward()   step(): deposit, wait, apply    zero_grad()
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .._core.buffers import Array
from ..errors import StateError
from .metrics import Metrics
from .ops import wire

if TYPE_CHECKING:
    from .loop import Settings

Named = list[tuple[str, torch.nn.Parameter]]

# Bytes. Views begin at multiples of it, as memory that torch allocates does.
_ALIGNMENT = 64
_WIDE = (torch.float64, torch.complex128)
_FLOATS = (torch.float16, torch.float32, torch.float64)
DTYPES = (*_FLOATS, torch.complex64, torch.complex128, torch.bfloat16)


def as_tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the array's memory (for bfloat16 an array of its bits). If `array` is a
    tensor, return it."""
    if isinstance(array, torch.Tensor):
        return array
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(dtype)
    return torch.from_numpy(array)


def divide(total: Any, divisor: float, out: torch.Tensor) -> None:
    """Set out = total / divisor. total: an array or a tensor of the same dtype; may be `out`."""
    if isinstance(total, torch.Tensor):
        torch.div(total, divisor, out=out)
    elif out.device.type != "cpu" or out.dtype == torch.bfloat16:
        out.copy_(as_tensor(total.copy(), out.dtype))  # torch wants memory that can be written to
        out.div_(divisor)
    else:
        np.divide(total, total.dtype.type(divisor), out=out.numpy())


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of its gradient: its own if it has no gaps, as fused optimizers need."""
    return torch.empty_like(tensor, device="meta").stride()


def by_falling_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return its dimensions in the order of memory."""
    return tuple(sorted(range(tensor.dim()), key=lambda i: -tensor.stride(i)))


class Place(NamedTuple):
    """The place of a tensor: buffer, elements there, shape and strides. pairs: each of its complex
    numbers takes two elements."""

    buffer: int
    begin: int
    end: int
    shape: torch.Size
    strides: tuple[int, ...]
    pairs: bool


class Layout:
    """The flat buffers for a list of tensors, on their device, and each tensor's place in them.

    One buffer for each dtype; with `bucket_bytes` several, none above that unless a single tensor
    is, filled from the last tensor on, since backward computes the gradients of the last layers
    first; with `dtype` a single one, of that dtype.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        bucket_bytes: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.dtypes: list[torch.dtype] = []  # one for each buffer
        if dtype is not None:
            self.dtypes = [dtype]
        elif bucket_bytes is None:
            there = {tensor.dtype for tensor in tensors}
            self.dtypes = [one for one in DTYPES if one in there]
        self.counts = [0] * len(self.dtypes)
        self._only = dtype
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self._most = math.inf if bucket_bytes is None else bucket_bytes
        step = 1 if bucket_bytes is None else -1
        self.places = [self._place(tensor) for tensor in tensors[::step]][::step]

    def _place(self, tensor: torch.Tensor) -> Place:
        """Place a tensor in the last buffer of its dtype, if there is room, or in a new one."""
        dtype = tensor.dtype if self._only is None else self._only
        pairs = tensor.is_complex() and not dtype.is_complex
        length, grain = tensor.numel() * (1 + pairs), _ALIGNMENT // dtype.itemsize
        count = -(-length // grain) * grain
        buffer = max((i for i, one in enumerate(self.dtypes) if one == dtype), default=-1)
        begin = self.counts[buffer] if buffer >= 0 else 0
        if buffer < 0 or (begin and (begin + count) * dtype.itemsize > self._most):
            self.dtypes.append(dtype)
            self.counts.append(0)
            buffer, begin = len(self.dtypes) - 1, 0
        self.counts[buffer] += count
        strides = dense_strides(tensor)
        return Place(buffer, begin, begin + length, tensor.shape, strides, pairs)

    def digest(self) -> str:
        """Return a text that is equal for layouts with the same places in the same order."""
        places = [(p.buffer, p.begin, tuple(p.shape), p.strides) for p in self.places]
        return hashlib.blake2b(repr(places).encode(), digest_size=8).hexdigest()

    def new(self) -> list[torch.Tensor]:
        """Return new buffers of zeros."""
        return [flat.zero_() for flat in self.outline()]

    def outline(self) -> list[torch.Tensor]:
        """Return new buffers with any contents, whose memory was not touched."""
        pairs = zip(self.counts, self.dtypes)
        return [torch.empty(n, dtype=d, device=self.device) for n, d in pairs]

    def clear_gaps(self, flats: Sequence[torch.Tensor]) -> None:
        """Zero the gaps between the tensors, and after the last one."""
        for place in self.places:
            flat = flats[place.buffer]
            grain = _ALIGNMENT // flat.element_size()
            flat[place.end : -(-place.end // grain) * grain].zero_()

    def tensors(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        """Return the buffers as tensors on the memory of these arrays."""
        return [as_tensor(array, dtype) for array, dtype in zip(arrays, self.dtypes)]

    def part(self, flats: Sequence[Any], i: int) -> Any:
        """Return the part of tensor i in the buffers (arrays or tensors), flat."""
        place = self.places[i]
        return flats[place.buffer][place.begin : place.end]

    def view(self, flats: Sequence[torch.Tensor], i: int) -> torch.Tensor:
        """Return the part of tensor i in the buffers, with its shape and strides."""
        part: torch.Tensor = self.part(flats, i)
        if self.places[i].pairs:
            part = torch.view_as_complex(part.view(-1, 2))
        return part.as_strided(self.places[i].shape, self.places[i].strides)


class Views:
    """Flat buffers of a layout, and a view of them for each tensor. rows: the buffer of the
    fingerprints, if these are the send buffers of a handle.

    ``p.grad.data = ...``, as in `model.to()`, replaces the memory of a view, although `p.grad` is
    still the same object. `strayed` finds these.
    """

    def __init__(self, layout: Layout, flats: list[torch.Tensor], rows: Any = None) -> None:
        self._layout, self.flats, self.rows = layout, flats, rows
        self.tensors = [layout.view(flats, i) for i in range(len(layout.places))]
        self.addresses = list(map(torch.Tensor.data_ptr, self.tensors))

    def strayed(self) -> Sequence[int]:
        """Return the indices of views whose memory was replaced."""
        now = list(map(torch.Tensor.data_ptr, self.tensors))
        if now == self.addresses:
            return ()
        return [i for i, (a, b) in enumerate(zip(now, self.addresses)) if a != b]

    def sound(self) -> list[torch.Tensor]:
        """Return all views, after making those again whose memory was replaced."""
        for i in self.strayed():
            self.tensors[i] = self._layout.view(self.flats, i)
        return self.tensors


class ParameterVector:
    """Parameters that lie in one vector, the model of a process.

    A parameter of the vector's dtype becomes a view of the vector: what an optimizer does to it is
    done to the vector, and nothing is copied. A parameter of another dtype, as bfloat16, stays
    where it is; the vector has it in full precision, as a master copy. Its changes go to the
    vector as differences (`gather`), and the vector's come back rounded (`scatter`).

    The process's array is on the host. For a model on a device the vector is a copy on the device,
    and `gather` and `scatter` copy all of it.
    """

    def __init__(self, parameters: Named) -> None:
        self._named = list(parameters)
        wide = any(parameter.dtype in _WIDE for _, parameter in parameters)
        self.dtype = torch.float64 if wide else torch.float32
        self.layout = Layout([parameter for _, parameter in parameters], dtype=self.dtype)
        self._elsewhere = self.layout.device.type != "cpu"
        self._inside: list[int] = []  # parameters that are views of the vector
        self._apart: list[int] = []  # those that are not

    def vector(self) -> Array:
        """Return a copy of the parameters, with zeros between them."""
        (vector,) = self.layout.new()
        with torch.no_grad():
            for (_, parameter), view in zip(self._named, self.views(vector)):
                view.copy_(parameter)
        found: Array = vector.cpu().numpy()
        return found

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        return Views(self.layout, [vector]).tensors

    def move_to(self, array: Array) -> None:
        """Give the parameters the values of this vector, and its memory."""
        self._array, self._host = array, torch.from_numpy(array)
        self._vector = self._host.to(self.layout.device)
        self._views = Views(self.layout, [self._vector])
        for i, ((_, parameter), view) in enumerate(zip(self._named, self._views.tensors)):
            if parameter.dtype == view.dtype:
                parameter.data = view
            (self._inside if parameter.dtype == view.dtype else self._apart).append(i)
        self.scatter()

    @torch.no_grad()
    def bring_back(self) -> None:
        """Copy parameters whose memory was replaced to the vector; make them its views again."""
        addresses = self._views.addresses
        moved = [i for i in self._inside if self._named[i][1].data_ptr() != addresses[i]]
        if moved and self._views.strayed():  # `share_memory()` also moves the vector
            self._vector = self._vector if self._elsewhere else torch.from_numpy(self._array)
            self._views = Views(self.layout, [self._vector])
        for i in moved:
            (name, parameter), view = self._named[i], self._views.tensors[i]
            was, now = (f"{wire.describe(one)} on {one.device}" for one in (view, parameter))
            if was != now:
                raise StateError(
                    f"parameter {name!r}: it was {was} when the optimizer was wrapped, and is "
                    f"{now}; close() the optimizer and wrap it anew"
                )
            view.copy_(parameter)
            parameter.data = view

    @torch.no_grad()
    def assign(self, vector: Array) -> None:
        for (_, parameter), view in zip(self._named, self.views(torch.from_numpy(vector))):
            parameter.copy_(view)

    @torch.no_grad()
    def gather(self) -> None:
        """Add the changes of the parameters since `scatter` to the array."""
        self.bring_back()
        for i in self._apart:
            parameter, view = self._named[i][1], self._views.tensors[i]
            view += parameter.to(view.dtype) - view.to(parameter.dtype).to(view.dtype)
        if self._elsewhere:
            self._host.copy_(self._vector)

    @torch.no_grad()
    def scatter(self) -> None:
        """Copy the array to the parameters."""
        if self._elsewhere:
            self._vector.copy_(self._host)
        for i in self._apart:
            self._named[i][1].copy_(self._views.tensors[i])

    def release(self) -> None:
        """Give the parameters memory of their own again, with the same values."""
        for i in self._inside:
            parameter, view = self._named[i][1], self._views.tensors[i]
            if parameter.data_ptr() == view.data_ptr():
                parameter.data = view.clone(memory_format=torch.preserve_format)
        self._inside, self._apart = [], []


_OF_ANOTHER = (
    "if the gradient came with another model's, as in a GAN, call requires_grad_(False) of this "
    "model before that backward pass, and requires_grad_(True) after it"
)


class Gradients:
    """The gradients of named parameters. Keeps no reference to the optimizer.

    refusal: why dense parameters may not have sparse gradients; None: they may, and autograd adds
    them to the dense memory. sparse: parameters whose gradients stay where autograd puts them.
    """

    def __init__(
        self,
        settings: Settings,
        parameters: Named,
        slot: Views,
        metrics: Metrics,
        refusal: str | None,
        sparse: Sequence[tuple[str, torch.nn.Parameter]] = (),
    ) -> None:
        self._metrics = metrics
        self._unused_as_zeros = settings.unused_as_zeros
        self.passes = settings.backward_passes_per_step  # backward passes that belong to a step
        self._names = [name for name, _ in (*parameters, *sparse)]
        self._parameters = [parameter for _, parameter in parameters]
        self.sparse = [parameter for _, parameter in sparse]
        self.averaged = False  # `synchronize` has shown the average: no gradient may come
        self.used: list[bool] = []  # dense parameters with a gradient in the last `gather`
        self._hooks: list[Any] = []
        self.restart(slot)
        self.collect()
        for i, parameter in enumerate((*self._parameters, *self.sparse)):
            hookable: Any = parameter
            added = functools.partial(self._added, i)
            self._hooks.append(hookable.register_post_accumulate_grad_hook(added))
            if refusal is not None and i < len(parameters):
                self._hooks.append(self._refuse_sparse(i, hookable, refusal))

    def _added(self, i: int, parameter: torch.Tensor) -> None:
        """Note that autograd has added a gradient of parameter i."""
        self._passes[i] += 1
        if self._passes[i] > self.passes:
            raise StateError(
                f"parameter {self._names[i]!r}: a gradient came {self._passes[i]} times before "
                f"step(), expected backward_passes_per_step={self.passes}; call step() after "
                f"each backward pass, or set backward_passes_per_step; {_OF_ANOTHER}"
            )
        if self.averaged:
            raise StateError(
                "backward() between synchronize() and step(): its gradient would be added to "
                "the average, on this rank alone"
            )
        if i < len(self._parameters) and parameter.grad is not self.slot.tensors[i]:
            self._move(i)

    def _refuse_sparse(self, i: int, parameter: Any, refusal: str) -> Any:
        """Refuse a sparse gradient. Only the first one is checked: later ones cost nothing."""

        def look(gradient: torch.Tensor) -> None:
            if gradient.layout != torch.strided:
                raise TypeError(f"parameter {self._names[i]!r}: its gradient is sparse; {refusal}")
            hook.remove()

        hook = parameter.register_hook(look)
        return hook

    @torch.no_grad()
    def _move(self, i: int) -> None:
        """Copy a gradient in memory of the program to the send buffer."""
        parameter, view = self._parameters[i], self.slot.sound()[i]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        else:
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            if gradient.shape != view.shape or gradient.layout != torch.strided:
                raise ValueError(
                    f"parameter {self._names[i]!r}: expected a dense gradient of shape "
                    f"{tuple(view.shape)}, got {gradient.layout} of {tuple(gradient.shape)}"
                )
            view.copy_(gradient)
            self._metrics.copied += 1
        parameter.grad = view

    @property
    def flats(self) -> list[torch.Tensor]:
        """All gradients: one tensor for each buffer, and one for each sparse gradient."""
        return [*self.slot.flats, *self.sparse_values()] if self.sparse else self.slot.flats

    def sparse_values(self) -> list[torch.Tensor]:
        """Return views of the values of the sparse gradients."""
        there = [parameter.grad for parameter in self.sparse if parameter.grad is not None]
        return [gradient._values().view(-1) for gradient in there]

    def check_none(self, what: str) -> None:
        if any(self._passes):
            raise StateError(
                f"{what} between backward() and step(): the gradient would be lost; call step() "
                f"first; {_OF_ANOTHER}"
            )

    def gather(self, fewer: bool) -> None:
        """Copy gradients that the program has replaced, or removed, since backward. StateError if a
        backward pass is missing (`fewer`: if all are). A parameter is used if autograd or the
        program gave it a gradient; without a call of a hook it may have written to the view."""
        most = max(self._passes)
        if not most:  # no hook sees a gradient that the program has assigned, as with torch.func
            known = zip(self._parameters, self.slot.tensors, self._shown.tensors)
            if not any(
                p.grad is not None and p.grad is not a and p.grad is not b for p, a, b in known
            ):
                raise StateError(
                    "step() without backward: no gradient has come since the last step"
                )
        elif most < self.passes and not fewer:
            raise StateError(
                f"step() after {most} of {self.passes} backward passes (backward_passes_per_step)"
            )
        for parameter in self.sparse:
            if parameter.grad is not None:
                parameter.grad = by_rows(parameter.grad)
        strayed = self.slot.strayed()
        self.used = []
        for i, (parameter, view) in enumerate(zip(self._parameters, self.slot.tensors)):
            given, elsewhere = parameter.grad, parameter.grad is not view or i in strayed
            came = bool(self._passes[i]) or elsewhere or bool(view.any())
            self.used.append(given is not None and came)
            if elsewhere:
                self._move(i)

    def hide(self, used: Sequence[bool]) -> None:
        """Set the gradients of the other dense parameters to None, until they are shown again: the
        optimizer skips them, so weight decay and momentum do not move them."""
        if not self._unused_as_zeros:
            for parameter, one in zip(self._parameters, used):
                if not one:
                    parameter.grad = None

    def give_average(self) -> None:
        """Let the update use the average. StateError if a gradient has come."""
        if any(self._passes):
            raise StateError(
                "step() after backward() since synchronize(): the average is spoilt on this rank; "
                "begin anew from a checkpoint, on all ranks"
            )
        self.averaged = False

    def restart(self, slot: Views) -> None:
        """Begin the backward passes of the next round, which fill this slot."""
        self._passes = [0] * len(self._names)
        self.slot = slot

    def collect(self) -> None:
        """Collect gradients in the slot, from zero."""
        for flat in self.slot.flats:
            flat.zero_()
        for parameter in self.sparse:
            parameter.grad = None
        self.show(self.slot)

    def show(self, views: Views) -> None:
        """Set the parameters' gradients to these views."""
        self._shown = views
        for parameter, view in zip(self._parameters, views.sound()):
            parameter.grad = view

    def close(self, own: bool = False) -> None:
        """Remove the hooks and the gradients. own: keep gradients in other memory, since another
        optimizer may have the parameters now."""
        for hook in self._hooks:
            hook.remove()
        here = {id(view) for view in (*self._shown.tensors, *self.slot.tensors)}
        for parameter in (*self._parameters, *self.sparse):
            if not own or id(parameter.grad) in here:
                parameter.grad = None


def by_rows(gradient: torch.Tensor) -> torch.Tensor:
    """Return it as a sparse tensor of rows."""
    if gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1:
        return gradient
    return gradient.to_dense().to_sparse(1) if gradient.is_sparse else gradient.to_sparse(1)
