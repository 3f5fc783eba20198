# SPDX-License-Identifier: Apache-2.0
"""Tell whether this process is the command ``partialcoll`` or a rank of a job.

Outside of a job the command prints help or starts a job. It has to work on login nodes, where MPI
may not start, so it does not load MPI. Every other process that imports the package loads MPI.
"""

import os
import sys

JOB_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK")


def in_job() -> bool:
    """Was this process started by a launcher (mpiexec, srun)? srun's --mpi=none starts ranks that
    know nothing of each other; a single task of srun's is as good as none."""
    alone = os.environ.get("SLURM_STEP_NUM_TASKS", "1") == "1"
    return not alone or any(variable in os.environ for variable in JOB_VARIABLES)


def _program() -> str:
    return sys.argv[0] if getattr(sys, "argv", None) else ""


def is_command() -> bool:
    """Return whether this process is the console script or ``python -m partialcoll``."""
    folder, program = os.path.split(_program())
    module = program == "__main__.py" and os.path.basename(folder) == "partialcoll"
    return module or program == "partialcoll"


def only_starts() -> bool:
    """Return whether this is the command outside of a job, or a subcommand that needs no MPI in a
    job: ``doctor``, which checks before MPI starts, or ``run``, which starts programs. (The program
    is called "-m" while Python searches for the module that -m names.)"""
    if not (is_command() or _program() == "-m"):
        return False
    return not in_job() or sys.argv[1:2] in (["doctor"], ["run"])
