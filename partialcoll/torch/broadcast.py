# SPDX-License-Identifier: Apache-2.0
"""`broadcast` by Horovod's names: in place or not, waited for at once or later."""

from __future__ import annotations

from typing import Any

import torch

from .allreduce import allreduce
from .arguments import check_name, check_root, named, with_gradient
from .ops import transfer, wire
from .ops.call import Call, result_of
from .process_sets import OptionalSet
from .world import calls_of, rank


def _broadcast(
    tensor: Any,
    root_rank: Any,
    name: Any,
    process_set: OptionalSet,
    *,
    in_place: bool = False,
    later: bool = False,
) -> Call:
    """Begin it; a synchronous one is over when this returns."""

    def prepare() -> Call:
        check_name(name)
        root = check_root(root_rank, process_set)
        wire.check_tensor(tensor, written=in_place, reduced=False)
        text = named(f"broadcast of {wire.describe(tensor)} from rank {root}", name)
        output = tensor if in_place else tensor.detach().clone()
        return Call(text, lambda to: transfer.broadcast(to, output, root), [output])

    return calls_of(process_set, name if later else None).make(prepare, name, later)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> torch.Tensor:
    """The root's tensor, bit for bit, in a new tensor on every rank. Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Of the same shape and dtype on all ranks (MismatchError). If it requires a gradient, so does
        the result: the root gets the mean of all ranks' gradients, as with Horovod.
    root_rank : int
        Whose it is, by its number in the world; ValueError if it is not there.
    name, process_set
        See `allreduce`.
    """
    sent = result_of(_broadcast(tensor, root_rank, name, process_set))

    def back(gradients: Any) -> Any:
        mean = allreduce(gradients[0], process_set=process_set)
        return [mean if rank() == root_rank else torch.zeros_like(mean)]

    return with_gradient([sent], back, [tensor])[0]


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> torch.Tensor:
    """`broadcast` in place; returns `tensor`. Collective."""
    return result_of(_broadcast(tensor, root_rank, name, process_set, in_place=True))


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """`broadcast` of `tensor` that goes on in the background; see `allreduce_async`. Collective."""
    return _broadcast(tensor, root_rank, name, process_set, later=True)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: OptionalSet = None,
) -> Call:
    """`broadcast` in place, in the background: leave `tensor` alone until `synchronize`.
    Collective."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=True, later=True)
