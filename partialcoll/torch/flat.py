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

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import torch

from .._core.buffers import Array
from ..errors import StateError
from .metrics import Metrics
from .ops import wire

Named = list[tuple[str, torch.nn.Parameter]]

# Bytes. Views begin at multiples of it, as memory of torch's own does.
_ALIGNMENT = 64
_WIDE = (torch.float64, torch.complex128)
_FLOATS = (torch.float16, torch.float32, torch.float64)
DTYPES = (*_FLOATS, torch.complex64, torch.complex128, torch.bfloat16)


def as_tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the array's memory; for bfloat16, which numpy lacks, by way of its bits. What is
    a tensor already stays what it is."""
    if isinstance(array, torch.Tensor):
        return array
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(dtype)
    return torch.from_numpy(array)


def divide(total: Any, divisor: float, out: torch.Tensor) -> None:
    """out = total / divisor, in the dtype of out. The total is an array or a tensor of that dtype,
    perhaps `out` itself."""
    if isinstance(total, torch.Tensor):
        torch.div(total, divisor, out=out)
    elif out.device.type != "cpu" or out.dtype == torch.bfloat16:
        out.copy_(as_tensor(total.copy(), out.dtype))  # torch wants memory that can be written to
        out.div_(divisor)
    else:
        np.divide(total, total.dtype.type(divisor), out=out.numpy())


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Those of a gradient of it: its own (channels_last, ...) if it leaves no holes. Fused
    optimizers go through memory and take it for granted."""
    return torch.empty_like(tensor, device="meta").stride()


def by_falling_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its dimensions in the order in which memory is gone through."""
    return tuple(sorted(range(tensor.dim()), key=lambda i: -tensor.stride(i)))


class Place(NamedTuple):
    """Of a tensor: its buffer, the elements there, its shape and order of memory, and whether
    each of its complex numbers is two of these elements."""

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

    def __len__(self) -> int:
        """How many tensors."""
        return len(self.places)

    def digest(self) -> str:
        """Equal for layouts in which each tensor lies in the same place, in the same order."""
        places = [(p.buffer, p.begin, tuple(p.shape), p.strides) for p in self.places]
        return hashlib.blake2b(repr(places).encode(), digest_size=8).hexdigest()

    def new(self) -> list[torch.Tensor]:
        """Buffers of its own, filled with zeros."""
        return [flat.zero_() for flat in self.outline()]

    def outline(self) -> list[torch.Tensor]:
        """Return buffers with any contents, whose memory nothing has touched."""
        pairs = zip(self.counts, self.dtypes)
        return [torch.empty(n, dtype=d, device=self.device) for n, d in pairs]

    def clear_gaps(self, flats: Sequence[torch.Tensor]) -> None:
        """Zero what lies between the tensors, and after the last one."""
        for place in self.places:
            flat = flats[place.buffer]
            grain = _ALIGNMENT // flat.element_size()
            flat[place.end : -(-place.end // grain) * grain].zero_()

    def tensors(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        """The buffers as tensors on the memory of these arrays."""
        return [as_tensor(array, dtype) for array, dtype in zip(arrays, self.dtypes)]

    def part(self, flats: Sequence[Any], i: int) -> Any:
        """Tensor i's part of the buffers (arrays or tensors), flat, in the order of memory."""
        place = self.places[i]
        return flats[place.buffer][place.begin : place.end]

    def view(self, flats: Sequence[torch.Tensor], i: int) -> torch.Tensor:
        """Tensor i's part of the buffers, in its shape and order of memory."""
        part: torch.Tensor = self.part(flats, i)
        if self.places[i].pairs:
            part = torch.view_as_complex(part.view(-1, 2))
        return part.as_strided(self.places[i].shape, self.places[i].strides)


class Views:
    """Flat buffers of a layout, and a view in them for each tensor. rows: what goes along with
    them, where they are a handle's send buffers.

    ``p.grad.data = ...``, which `model.to()` does as well, gives a view other memory; who looks
    only at whether `p.grad` is the view would not see it.
    """

    def __init__(self, layout: Layout, flats: list[torch.Tensor], rows: Any = None) -> None:
        self._layout, self.flats, self.rows = layout, flats, rows
        self.tensors = [layout.view(flats, i) for i in range(len(layout))]
        self.addresses = list(map(torch.Tensor.data_ptr, self.tensors))

    def strayed(self) -> Sequence[int]:
        """Return the indices of views whose memory was replaced."""
        now = list(map(torch.Tensor.data_ptr, self.tensors))
        if now == self.addresses:
            return ()
        return [i for i, (a, b) in enumerate(zip(now, self.addresses)) if a != b]

    def sound(self) -> list[torch.Tensor]:
        """Return all of them, those whose memory was replaced made again."""
        for i in self.strayed():
            self.tensors[i] = self._layout.view(self.flats, i)
        return self.tensors


class ParameterVector:
    """Parameters that lie in one vector, the model of a process.

    A parameter of the vector's dtype becomes a view of the vector: what an optimizer does to it is
    done to the vector, and nothing is copied. A parameter of another dtype, as bfloat16, stays
    where it is; the vector has it in full precision, as a master copy. Its changes go to the
    vector as differences (`gather`), and the vector's come back rounded (`scatter`).

    The process's array is the host's. Of a model on a device there is a vector like it there, which
    all this is about; `gather` and `scatter` copy the whole of it.
    """

    def __init__(self, parameters: Named) -> None:
        self._named = list(parameters)
        wide = any(parameter.dtype in _WIDE for _, parameter in parameters)
        self.dtype = torch.float64 if wide else torch.float32
        self._layout = Layout([parameter for _, parameter in parameters], dtype=self.dtype)
        (self.size,) = self._layout.counts
        self._elsewhere = self._layout.device.type != "cpu"
        self._inside: list[int] = []  # parameters that are views of the vector
        self._apart: list[int] = []  # those that are not

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Where each parameter begins and ends in the vector."""
        return [(place.begin, place.end) for place in self._layout.places]

    def vector(self) -> Array:
        """The parameters as they are now; a copy, with zeros between them."""
        (vector,) = self._layout.new()
        with torch.no_grad():
            for (_, parameter), view in zip(self._named, self.views(vector)):
                view.copy_(parameter)
        found: Array = vector.cpu().numpy()
        return found

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Each parameter's part of a vector."""
        return Views(self._layout, [vector]).tensors

    def _place_views(self) -> None:
        if not self._elsewhere:
            self._vector = torch.from_numpy(self._array)
        self._views = Views(self._layout, [self._vector])

    def move_to(self, array: Array) -> None:
        """From now on the parameters are what this vector says, and lie there."""
        self._array, self._host = array, torch.from_numpy(array)
        self._vector = self._host.to(self._layout.device)
        self._place_views()
        for i, ((_, parameter), view) in enumerate(zip(self._named, self._views.tensors)):
            if parameter.dtype == view.dtype:
                parameter.data = view
                self._inside.append(i)
            else:
                self._apart.append(i)
        self.scatter()

    @torch.no_grad()
    def bring_back(self) -> None:
        """Parameters that somebody has given other memory (``model.to(...)``, ``p.data = ...``)
        lie in the vector again, with their new values."""
        addresses = self._views.addresses
        moved = [i for i in self._inside if self._named[i][1].data_ptr() != addresses[i]]
        if moved and self._views.strayed():  # `share_memory()` moves what is under a view, too
            self._place_views()
        for i in moved:
            (name, parameter), view = self._named[i], self._views.tensors[i]
            if _form(parameter) != _form(view):
                raise StateError(
                    f"parameter {name!r}: it was {_form(view)} when the optimizer was wrapped, and "
                    f"is {_form(parameter)} now; close() the optimizer and wrap it anew"
                )
            view.copy_(parameter)
            parameter.data = view

    @torch.no_grad()
    def assign(self, vector: Array) -> None:
        """The parameters become what this vector says, where they are."""
        for (_, parameter), view in zip(self._named, self.views(torch.from_numpy(vector))):
            parameter.copy_(view)

    @torch.no_grad()
    def gather(self) -> None:
        """The array gets what has changed in the parameters since `scatter`."""
        for i in self._apart:
            parameter, view = self._named[i][1], self._views.tensors[i]
            view += parameter.to(view.dtype) - view.to(parameter.dtype).to(view.dtype)
        if self._elsewhere:
            self._host.copy_(self._vector)

    @torch.no_grad()
    def scatter(self) -> None:
        """The parameters become what the array says."""
        if self._elsewhere:
            self._vector.copy_(self._host)
        for i in self._apart:
            self._named[i][1].copy_(self._views.tensors[i])

    def release(self) -> None:
        """The parameters have memory of their own again, with the same values."""
        for i in self._inside:
            parameter, view = self._named[i][1], self._views.tensors[i]
            if parameter.data_ptr() == view.data_ptr():
                parameter.data = view.clone(memory_format=torch.preserve_format)
        self._inside, self._apart = [], []


def _form(tensor: torch.Tensor) -> str:
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"of shape {tuple(tensor.shape)} and {wire.name(tensor.dtype)}{where}"


OF_ANOTHER = (
    "if the gradient came with another model's, as in a GAN, call requires_grad_(False) of this "
    "model before that backward pass, and requires_grad_(True) after it"
)


class Gradients:
    """The gradients of named parameters. Keeps no reference to the optimizer.

    passes: backward passes that belong to a step. watch: `Early` or None. sparse: parameters whose
    gradients stay where autograd puts them. refusal: why others may not have sparse gradients;
    None: they may, and autograd adds them to the dense memory.
    """

    def __init__(
        self,
        parameters: Named,
        passes: int,
        slot: Views,
        metrics: Metrics,
        watch: Any = None,
        *,
        sparse: Named,
        refusal: str | None,
        unused_as_zeros: bool,
    ) -> None:
        self._watch, self._unused_as_zeros = watch, unused_as_zeros
        self._shown = slot
        self._names = [name for name, _ in (*parameters, *sparse)]
        self._parameters = [parameter for _, parameter in parameters]
        self.sparse = [parameter for _, parameter in sparse]
        self.passes, self._metrics = passes, metrics
        self._passes = [0] * len(self._names)
        self.came = False  # has a gradient since the last round?
        self.averaged = False  # is what is shown the average of `synchronize`? None may come then
        self._spoilt = False  # one has come
        self.slot = slot
        self.used: list[bool] = []  # dense parameters that had a gradient when it was gathered last
        self._hooks: list[Any] = []
        self.collect()
        for i, parameter in enumerate((*self._parameters, *self.sparse)):
            hookable: Any = parameter
            self._hooks.append(hookable.register_post_accumulate_grad_hook(self._hook(i)))
            if refusal is not None and i < len(parameters):
                self._hooks.append(self._refuse_sparse(i, hookable, refusal))

    def _hook(self, i: int) -> Callable[[torch.Tensor], None]:
        dense = i < len(self._parameters)

        def added(parameter: torch.Tensor) -> None:
            self.came = True
            self._passes[i] += 1
            if self._passes[i] > self.passes:
                raise StateError(
                    f"parameter {self._names[i]!r}: a gradient came {self._passes[i]} times before "
                    f"step(), expected backward_passes_per_step={self.passes}; call step() after "
                    f"each backward pass, or set backward_passes_per_step; {OF_ANOTHER}"
                )
            if self.averaged:
                self._spoilt = True
                raise StateError(
                    "backward() between synchronize() and step(): its gradient would be added to "
                    "the average, on this rank alone"
                )
            if not dense:
                return
            if parameter.grad is not self.slot.tensors[i]:
                self._move(i)
            if self._watch is not None and self._passes[i] == self.passes:
                views = self.slot
                if views.tensors[i].data_ptr() != views.addresses[i]:
                    self._move(i)
                self._watch.filled(i)

        return added

    def _refuse_sparse(self, i: int, parameter: Any, refusal: str) -> Any:
        """Check the first gradient only, so that later ones cost nothing."""

        def look(gradient: torch.Tensor) -> None:
            if gradient.layout != torch.strided:
                raise TypeError(f"parameter {self._names[i]!r}: its gradient is sparse; {refusal}")
            hook.remove()

        hook = parameter.register_hook(look)
        return hook

    @torch.no_grad()
    def _move(self, i: int) -> None:
        """A gradient in memory of the program's own goes to the send buffer."""
        if self._watch is not None:
            self._watch.check_waits(i)
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
        """All of them, one tensor for each dtype, and for each sparse one that there is."""
        return [*self.slot.flats, *self.sparse_values()] if self.sparse else self.slot.flats

    def sparse_values(self) -> list[torch.Tensor]:
        """Those of the sparse gradients; what is done to them is done to the gradients."""
        there = [parameter.grad for parameter in self.sparse if parameter.grad is not None]
        return [gradient._values().view(-1) for gradient in there]

    def set_passes(self, passes: int) -> None:
        """From the next step on. StateError between a backward pass and the step."""
        if self.came:
            raise StateError(
                "set_backward_passes_per_step() between backward() and step(); call step() first"
            )
        self.passes = passes

    def gather(self, fewer: bool) -> None:
        """Take what the program has put in the place of a view, or taken away, since backward.
        StateError if a backward pass is missing; `fewer`: all of them.

        A parameter is used if autograd or the program gave it a gradient. Where no hook was called,
        the program may have written to the view: then it is not zero.
        """
        most = max(self._passes)
        if not self.came:  # unless the program has made a tensor of its own some gradient, as with
            # torch.func: then there is no backward pass that a hook could see
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
        """Let the optimizer pass over the other dense parameters: their gradients are None, until
        they are shown again. Weight decay and momentum do not move them then."""
        if not self._unused_as_zeros:
            for parameter, one in zip(self._parameters, used):
                if not one:
                    parameter.grad = None

    def give_average(self) -> None:
        """The update takes the average. StateError if a gradient has come."""
        if self._spoilt:
            raise StateError(
                "step() after backward() since synchronize(): the average is spoilt on this rank; "
                "begin anew from a checkpoint, on all ranks"
            )
        self.averaged = False

    def forget(self) -> None:
        """What has come since the last round, and an average that no update has taken."""
        self.averaged = self._spoilt = False
        self.restart(self.slot)
        self.collect()

    def restart(self, slot: Views) -> None:
        """The next round's backward passes begin, and end in this slot."""
        self.came = False
        self._passes = [0] * len(self._passes)
        self.slot = slot

    def collect(self) -> None:
        """From now on gradients gather in the slot, from zero."""
        for flat in self.slot.flats:
            flat.zero_()
        for parameter in self.sparse:
            parameter.grad = None
        self.show(self.slot)

    def show(self, views: Views) -> None:
        """Make these the parameters' gradients."""
        self._shown = views
        for parameter, view in zip(self._parameters, views.sound()):
            parameter.grad = view

    def close(self, own: bool = False) -> None:
        """Leave the parameters alone. own: gradients that lie elsewhere than here stay, since
        another optimizer may have the parameters by now."""
        for hook in self._hooks:
            hook.remove()
        views = (*self._shown.tensors, *self.slot.tensors)
        here = {id(view) for view in views}
        for parameter in (*self._parameters, *self.sparse):
            if not own or id(parameter.grad) in here:
                parameter.grad = None


def by_rows(gradient: torch.Tensor) -> torch.Tensor:
    """The same as a sparse tensor of rows."""
    if gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1:
        return gradient
    return gradient.to_dense().to_sparse(1) if gradient.is_sparse else gradient.to_sparse(1)
