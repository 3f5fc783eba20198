# SPDX-License-Identifier: Apache-2.0
"""Gradients of embeddings that stay sparse: of each rank the rows that it has, on all ranks.

They travel beside a round, right after it, on all ranks that apply it: so a rank that has joined
takes part, with no rows. Which parameters these are is known when the optimizer is wrapped, since
all ranks need to know.
"""

from __future__ import annotations

import torch

from .._core.mpi import MPI
from ._checks import is_sparse
from .calls import Calls
from .flat import Named
from .ops import transfer
from .ops.call import Call


def sparse_parameters(
    parameters: Named, model: torch.nn.Module | None, inner: torch.optim.Optimizer
) -> Named:
    """Of these the ones whose gradients are sparse: those of a model's layers made with
    ``sparse=True``, and all of an optimizer for such gradients."""
    if wants_sparse(inner):
        return parameters
    layers = [] if model is None else [m for m in model.modules() if is_sparse(m)]
    known = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
    return [(name, parameter) for name, parameter in parameters if parameter in known]


def wants_sparse(inner: torch.optim.Optimizer) -> bool:
    """Does it take nothing else?"""
    return isinstance(inner, torch.optim.SparseAdam)


def _of_rows(places: torch.Tensor, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(places, rows, like.shape, check_invariants=False)


class SparseRows:
    """The sparse gradients of some parameters. Collective to make and to free.

    divisor: of the sum over the ranks.
    """

    def __init__(self, comm: MPI.Intracomm, parameters: Named, divisor: float) -> None:
        self._calls, self._parameters, self._divisor = Calls(comm), parameters, divisor
        self._own: list[torch.Tensor | None] = [None] * len(parameters)

    def take(self) -> None:
        """The gradients that the parameters have are what this rank contributes next."""
        self._own = [parameter.grad for _, parameter in self._parameters]

    def exchange(self) -> None:
        """Each parameter's gradient becomes the ranks' sum, divided; the same bits on all ranks.
        Collective."""
        own, self._own = self._own, [None] * len(self._own)
        for (name, parameter), gradient in zip(self._parameters, own):
            parameter.grad = self._sum(name, parameter, gradient)

    def _sum(
        self, name: str, parameter: torch.Tensor, gradient: torch.Tensor | None
    ) -> torch.Tensor:
        if gradient is None:
            none = parameter.new_empty((0, *parameter.shape[1:]))
            places = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
            gradient = _of_rows(places, none, parameter)
        found: transfer.Found = []
        rows = gradient._indices(), gradient._values()
        move = transfer.sum_sparse(self._calls.comm, *rows, parameter.shape, found)
        self._calls.run(Call(f"the sparse gradient of {name}", move))
        (total,) = found
        mean = (total._values() / self._divisor).to(parameter.dtype)
        return _of_rows(total._indices(), mean, parameter).coalesce()

    def free(self) -> None:
        """Collective."""
        self._calls.free()
