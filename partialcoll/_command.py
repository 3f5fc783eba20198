# SPDX-License-Identifier: Apache-2.0
"""Is this process the command ``partialcoll``, or a rank of a job?

The command outside of a job prints help or starts a job, on login nodes as well, where MPI may not
start; so it does not load MPI, which everybody else who imports the package does.
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
    """Is this the console script, or ``python -m partialcoll``?"""
    folder, program = os.path.split(_program())
    module = program == "__main__.py" and os.path.basename(folder) == "partialcoll"
    return module or program == "partialcoll"


def only_starts() -> bool:
    """Is this the command outside of a job, or one that needs no MPI in it: the doctor, who looks
    before MPI begins, or what starts programs? (While Python looks for a module that -m names, that
    is what stands for the program.)"""
    if not (is_command() or _program() == "-m"):
        return False
    return not in_job() or sys.argv[1:2] in (["doctor"], ["run"])
