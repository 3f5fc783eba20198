# SPDX-License-Identifier: Apache-2.0
"""The communication hook for torch's DistributedDataParallel, on whatever process group it has.

Annotations are objects here, not texts: DDP compares them with its own.
"""

import typing

import torch
import torch.distributed as dist

from ._partial_state import PartialState

if typing.TYPE_CHECKING:
    GradBucket = typing.Any
else:  # a torch built without it can be imported, too
    GradBucket = getattr(dist, "GradBucket", typing.Any)


def partial_allreduce_hook(
    state: PartialState, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A DDP communication hook: gradients go by a partial allreduce, one round for each step.

    >>> ddp.register_comm_hook(pct.PartialState(quorum="solo"), pct.partial_allreduce_hook)

    Each bucket is copied when it is ready; the round takes place with the last one. The futures are
    always completed: with the round's sum divided by the number of ranks, or, if that
    failed, with the local gradient, and then backward() raises the error when DDP has finished.
    """
    return state._take(bucket)


__all__ = ["PartialState", "partial_allreduce_hook"]
