# SPDX-License-Identifier: Apache-2.0
"""Parameters that lie in one vector, the model of a process.

A parameter of the vector's dtype becomes a view of the vector: what an optimizer does to it is
done to the vector, and nothing is copied. A parameter of another dtype, as bfloat16, stays where it
is; the vector has it in full precision, as a master copy. Its changes go to the vector as
differences (`gather`), and the vector's come back rounded (`scatter`).
"""

from __future__ import annotations

import torch

from .._buffers import Array
from .._errors import StateError
from ._checks import Named
from ._layout import dense_strides

_ALIGNMENT = 64  # bytes, at which parameters begin
_WIDE = (torch.float64, torch.complex128)


class Place:
    """Where in the vector a parameter is: complex numbers as two of the vector's elements."""

    def __init__(self, parameter: torch.Tensor, begin: int) -> None:
        self.begin, self.pairs = begin, parameter.is_complex()
        self.end = begin + parameter.numel() * (2 if self.pairs else 1)
        self.shape, self.strides = parameter.shape, dense_strides(parameter)

    def view(self, vector: torch.Tensor) -> torch.Tensor:
        """Its part of the vector, in its shape and order of memory."""
        part = vector[self.begin : self.end]
        if self.pairs:
            part = torch.view_as_complex(part.view(-1, 2))
        return part.as_strided(self.shape, self.strides, part.storage_offset())


class Flat:
    """The parameters, and where in a vector they go."""

    def __init__(self, parameters: Named) -> None:
        self._named = list(parameters)
        wide = any(parameter.dtype in _WIDE for _, parameter in parameters)
        self.dtype = torch.float64 if wide else torch.float32
        grain = _ALIGNMENT // self.dtype.itemsize
        self._places: list[Place] = []
        self.size = 0
        for _, parameter in parameters:
            place = Place(parameter, self.size)
            self._places.append(place)
            self.size = -(-place.end // grain) * grain
        self._inside: list[tuple[str, torch.nn.Parameter, torch.Tensor]] = []
        self._apart: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._addresses: list[int] = []

    def check_apart(self) -> None:
        """Raises ValueError if two of them share memory: each would get a place of its own."""
        seen: dict[int, str] = {}
        for name, parameter in self._named:
            if not parameter.numel():
                continue
            other = seen.setdefault(parameter.data_ptr(), name)
            if other != name:
                raise ValueError(
                    f"parameters {other!r} and {name!r} share memory; make them one parameter, or "
                    "give each its own"
                )

    def vector(self) -> Array:
        """The parameters as they are now; a copy, with zeros between them."""
        vector = torch.zeros(self.size, dtype=self.dtype)
        with torch.no_grad():
            for (_, parameter), view in zip(self._named, self.views(vector)):
                view.copy_(parameter)
        found: Array = vector.numpy()
        return found

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Each parameter's part of a vector."""
        return [place.view(vector) for place in self._places]

    def move_to(self, array: Array) -> None:
        """From now on the parameters are what this vector says, and lie there."""
        self._array = array
        for (name, parameter), view in zip(self._named, self.views(torch.from_numpy(array))):
            if parameter.dtype == view.dtype:
                parameter.data = view
                self._inside.append((name, parameter, view))
            else:
                self._apart.append((parameter, view))
        self._addresses = [view.data_ptr() for _, _, view in self._inside]
        self.scatter()

    @torch.no_grad()
    def bring_back(self) -> None:
        """Parameters that somebody has given other memory (``model.to(...)``, ``p.data = ...``)
        lie in the vector again, with their new values."""
        if [parameter.data_ptr() for _, parameter, _ in self._inside] == self._addresses:
            return
        self._mend_views()
        for (name, parameter, view), address in zip(self._inside, self._addresses):
            if parameter.data_ptr() == address:
                continue
            if parameter.shape != view.shape or parameter.dtype != view.dtype:
                raise StateError(
                    f"parameter {name!r}: it was {_form(view)} when the optimizer was wrapped, and "
                    f"is {_form(parameter)} now; close() the optimizer and wrap it anew"
                )
            view.copy_(parameter)
            parameter.data = view

    def _mend_views(self) -> None:
        """`share_memory()` moves the memory under a view, too."""
        if [view.data_ptr() for _, _, view in self._inside] == self._addresses:
            return
        of = dict(zip((p for _, p in self._named), self.views(torch.from_numpy(self._array))))
        self._inside = [(name, parameter, of[parameter]) for name, parameter, _ in self._inside]

    @torch.no_grad()
    def assign(self, vector: Array) -> None:
        """The parameters become what this vector says, where they are."""
        for (_, parameter), view in zip(self._named, self.views(torch.from_numpy(vector))):
            parameter.copy_(view)

    @torch.no_grad()
    def gather(self) -> None:
        """The vector gets what has changed in parameters of other dtypes since `scatter`."""
        for parameter, view in self._apart:
            view += parameter.to(view.dtype) - view.to(parameter.dtype).to(view.dtype)

    @torch.no_grad()
    def scatter(self) -> None:
        """Parameters of other dtypes become what the vector says."""
        for parameter, view in self._apart:
            parameter.copy_(view)

    def release(self) -> None:
        """The parameters have memory of their own again, with the same values."""
        for _, parameter, view in self._inside:
            if parameter.data_ptr() == view.data_ptr():
                parameter.data = view.clone(memory_format=torch.preserve_format)
        self._inside.clear()
        self._apart.clear()
        self._addresses = []


def _form(tensor: torch.Tensor) -> str:
    return f"of shape {tuple(tensor.shape)} and {str(tensor.dtype).removeprefix('torch.')}"
