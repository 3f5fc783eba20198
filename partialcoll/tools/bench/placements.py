# SPDX-License-Identifier: Apache-2.0
"""The same handle on both planes, side by side: ranks of a node in shared memory, messages only."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Callable

import partialcoll as pc

from ..._core.mpi import MPI


@functools.cache
def _say(asked: str, got: str, what: str) -> None:
    """Once, not for every size."""
    print(
        f'{what}: domain "{asked}" comes to "{got}" here (no two ranks share memory, or the '
        "algorithm is one of messages only)",
        file=sys.stderr,
        flush=True,
    )


def handles(
    comm: MPI.Intracomm,
    domains: Sequence[str],
    make: Callable[[str], pc.AllreduceHandle],
    what: str,
) -> Iterator[pc.AllreduceHandle]:
    """A handle for each domain that is asked for and can be had, made when its turn comes.
    Collective.

    Rows are to carry `AllreduceHandle.domain`, what a handle is, not what was asked for: where
    the two differ that is said, and the handle is left out if the other one is asked for anyway.
    """
    for domain in domains:
        handle = make(domain)
        if handle.domain != domain:
            if comm.rank == 0:
                _say(domain, handle.domain, what)
            if handle.domain in domains:
                handle.Free()
                continue
        yield handle
