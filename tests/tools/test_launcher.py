# SPDX-License-Identifier: Apache-2.0
"""Launchers are identified by their recorded --version output."""

import os
import signal
import subprocess
import sys

import pytest

from partialcoll.errors import Error
from partialcoll.tools import launcher

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

VERSIONS = {
    "MPICH": (
        "mpich",
        """HYDRA build details:
    Version:                                 4.0.2
    Release Date:                            Thu Apr  7 12:34:45 CDT 2022
    CC:                              gcc
    Process Manager:                         pmi
    Launchers available:                     ssh rsh fork slurm ll lsf sge manual persist
    Topology libraries available:            hwloc
    Resource management kernels available:   user slurm ll lsf sge pbs cobalt
    Demux engines available:                 poll select
""",
    ),
    "Intel MPI": (
        "mpich",
        """Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)
Copyright 2003-2023, Intel Corporation.
""",
    ),
    "Open MPI 5": (
        "openmpi",
        """mpiexec (Open MPI) 5.0.2

Report bugs to https://www.open-mpi.org/community/help/
""",
    ),
    "PRRTE of Open MPI 5": ("openmpi", "prterun (PRRTE) 3.0.3\n"),
    "Open MPI 4": (
        "openmpi",
        """mpiexec (OpenRTE) 4.1.4

Report bugs to http://www.open-mpi.org/community/help/
""",
    ),
    "srun": ("slurm", "slurm 22.05.8\n"),
}


@pytest.mark.parametrize("which", VERSIONS)
def test_whose_it_is(which):
    vendor, text = VERSIONS[which]
    assert launcher.vendor_of(text) == vendor


@pytest.mark.parametrize("which", VERSIONS)
@pytest.mark.parametrize("wanted", ["mpich", "openmpi"])
def test_find(tmp_path, monkeypatch, which, wanted):
    """A matching launcher is used. For any other one, a message says what to do."""
    vendor, text = VERSIONS[which]
    (tmp_path / "version").write_text(text)
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\ncat '{tmp_path}/version'\n")
    mpiexec.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    if vendor == wanted:
        assert launcher.find(wanted) == str(mpiexec)
        return
    expected = "srun -n 8 partialcoll" if vendor == "slurm" else f"belongs to {vendor}"
    with pytest.raises(Error, match=expected):
        launcher.find(wanted)


def test_no_mpi_is_said_in_one_sentence(tmp_path, monkeypatch):
    """In a package with cores for several MPIs, mpi4py is asked for its own."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("rc = type('rc', (), {})\n")
    (tmp_path / "mpi4py/MPI.py").write_text("raise RuntimeError('cannot load MPI library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(launcher.ffi, "built", lambda: ["mpich", "openmpi"])
    with pytest.raises(Error, match=r"^mpi4py loads no MPI \(cannot load .* pip install mpich"):
        launcher._mpi.__wrapped__()


# The child kills its parent, and waits for its end, before it asks for a signal.
PROGRAM = """
import os, signal, subprocess, sys, time
from functools import partial
from partialcoll.tools import job

def begin(parent):
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.001)
    job.end_with_parent(parent)

program = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", sys.argv[1]]
subprocess.run(program, preexec_fn=partial(begin, os.getpid()))
"""


def test_parent_ends_before_its_child_asks_for_a_signal(tmp_path):
    file = str(tmp_path / "it ran")
    command = [sys.executable, "-c", PROGRAM, file]
    done = subprocess.run(command, capture_output=True)  # returns when the child has ended, too
    assert done.returncode == -signal.SIGKILL and not os.path.exists(file), done.stderr
