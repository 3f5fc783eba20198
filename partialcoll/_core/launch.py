# SPDX-License-Identifier: Apache-2.0
"""Which launcher started this process, and did it fit the MPI in use?"""

from __future__ import annotations

import os
import sys

from ..errors import Error
from .ffi import built
from .mpi import MPI

# Set by the launcher for each process it starts: number of processes, this one's, and whose it is.
_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpiexec"),
    ("PMI_SIZE", "PMI_RANK", "the mpiexec of MPICH or of a relative of it, or srun --mpi=pmi2"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"),
)


def launched_size() -> tuple[int, str] | None:
    of_torchrun = [("WORLD_SIZE", "torchrun")] if "TORCHELASTIC_RUN_ID" in os.environ else []
    sizes = [(size, launcher) for size, _, launcher in _VARIABLES]
    for variable, launcher in (*sizes, *of_torchrun):
        text = os.environ.get(variable, "")
        if text.isdigit():
            return int(text), launcher
    return None


def launched_rank() -> tuple[int, int] | None:
    """Return this process's number and the number of processes, as an MPI launcher has left them in
    the environment; None where it has left neither. Local; begins no MPI."""
    for size, rank, _ in _VARIABLES:
        texts = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(text.isdigit() for text in texts):
            return int(texts[0]), int(texts[1])
    return None


def is_first() -> bool:
    return all(os.environ.get(rank, "0") == "0" for _, rank, _ in _VARIABLES)


def foreign(family: str) -> str:
    """Say what is wrong with the launcher, as far as that is known before MPI begins, which MPICH
    would not survive; empty: nothing. family: whose launcher the MPI needs."""
    launched = launched_size()
    if launched is None or family != "mpich" or "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return ""
    return f"{launched[0]} processes were started by {launched[1]}, but mpi4py uses MPICH's family"


def check_before_mpi() -> None:
    """Raise Error if MPI_Init would end this process: Open MPI's mpiexec has started it, and mpi4py
    loads an MPI of MPICH's family. Only a program that has not begun MPI can be told so."""
    launched, known = launched_size(), built()
    if "mpi4py.MPI" in sys.modules or "PMI_RANK" in os.environ or known == ["openmpi"]:
        return
    if launched is None or not foreign("mpich"):
        return
    vendor = "MPICH or a relative of it" if known == ["mpich"] else _load_and_ask()
    if vendor != "Open MPI":
        raise apart(*launched, vendor=vendor)


def _load_and_ask() -> str:
    """Load the MPI of mpi4py and return its vendor. Begin Open MPI, as importing mpi4py does."""
    import mpi4py

    options = mpi4py.rc
    begins, ends = options.initialize, options.finalize
    options.initialize, options.finalize = False, begins if ends is None else ends
    try:
        vendor = MPI.get_vendor()[0]
    finally:
        options.initialize, options.finalize = begins, ends
    if begins and vendor == "Open MPI":
        level = options.thread_level if options.threads else "single"
        MPI.Init_thread(getattr(MPI, f"THREAD_{level.upper()}"))
    return vendor


def check_launcher() -> None:
    """Raise Error if P jobs of one rank were started instead of one job of P ranks."""
    launched = launched_size()
    if launched is None or launched[0] < 2 or MPI.COMM_WORLD.size > 1:
        return
    raise apart(*launched)


def apart(size: int, launcher: str = "something else than mpiexec", vendor: str = "") -> Error:
    """Return the error that says how to start the ranks. vendor: of an MPI that must not load."""
    return Error(
        f"{size} processes were started by {launcher}, but each of them is an MPI job of its own: "
        f"mpi4py uses {vendor or MPI.get_vendor()[0]}, whose own mpiexec must start it, as in "
        f"`partialcoll run -n {size} python ...`, or srun with the protocol that this MPI knows: "
        "--mpi=pmi2 (MPICH and its relatives), pmix (Open MPI)"
    )
