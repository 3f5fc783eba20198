# SPDX-License-Identifier: Apache-2.0
"""Processes that Open MPI has ended: where a rank dies of those for whom a communicator is being
made, the others follow a null pointer as they are told (`ompi_comm_revoke_local` of one that has no
collectives yet, up to 5.0.11 at least; docs/faults.md)."""

from __future__ import annotations

import re

# Of the stack that Open MPI prints then: [host:process] [ 1] library(function+offset)[address]
_FRAME = re.compile(r"\[[^\]\n]*:(\d+)\] \[ *\d+\] [^\n]*\(ompi_comm_revoke_local\+")


def ended_by_mpi(output: str) -> set[int]:
    """Their numbers, by what a job has printed."""
    return {int(number) for number in _FRAME.findall(output)}
