# SPDX-License-Identifier: Apache-2.0
"""Agreements may succeed with arbitrary bits, as observed with Open MPI shortly after a death: the
recovery still succeeds (csrc/transport/mpi/mpi_recovery.c). None begins while another thread is in
MPI, however long that thread takes (csrc/transport/mpi/mpi_internal.h)."""

import subprocess
from pathlib import Path

import c_users
import pytest
from dying import DyingJob
from ulfm import needs_ulfm

pytestmark = [needs_ulfm, pytest.mark.in_turns]

# Each rank's first four create the handle, the next two belong to the first recovery.
GARBLED = {
    "the first time, on some": "0:5,2:5,0:7,1:8",
    "the second time, on some": "1:6,2:8",
    "both times, on one": "2:5,2:6",
    "the first time, on all": "0:5,1:5,2:5",
    "while the handle is made": "0:1,1:1,2:2,0:3,2:4",
}


def survive(preloaded, tmp_path, monkeypatch):
    """Preload a library built from this source, and let a rank of four die."""
    source, library = Path(__file__).with_name(preloaded), tmp_path / "preloaded.so"
    command = [c_users.mpicc(), "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    job = DyingJob(4, "majority", "node", {3: "deposit published:20"})
    verdict = job.run()
    said = (job.folder / "output").read_text(errors="replace")[-3000:]
    faults = [fault for fault in verdict.faults if "was silent" not in fault]  # for how long
    assert not faults and job.killed, (faults, said)
    job.forget()


@pytest.mark.parametrize("which", GARBLED)
def test_garbled_outcomes(which, tmp_path, monkeypatch):
    monkeypatch.setenv("GARBLED", GARBLED[which])
    survive("garbled.c", tmp_path, monkeypatch)


def test_slow_tests_exclude_agreements(tmp_path, monkeypatch):
    survive("slow_tests.c", tmp_path, monkeypatch)
