# SPDX-License-Identifier: Apache-2.0
"""Agreements that end well with arbitrary bits, as Open MPI's have been seen to shortly after a
death: the recovery goes on all the same (csrc/transport/mpi/mpi_recovery.c)."""

import subprocess
from pathlib import Path

import c_users
import pytest
from ulfm import needs_ulfm

pytestmark = [needs_ulfm, pytest.mark.in_turns]

killing = pytest.importorskip("partialcoll.tools.bench.faults.killing")

SOURCE = Path(__file__).with_name("garbled.c")
# Each rank's first four are those of making the handle, the next two of the first recovery.
GARBLED = {
    "the first time, on some": "0:5,2:5,0:7,1:8",
    "the second time, on some": "1:6,2:8",
    "both times, on one": "2:5,2:6",
    "the first time, on all": "0:5,1:5,2:5",
    "while the handle is made": "0:1,1:1,2:2,0:3,2:4",
}


@pytest.mark.parametrize("which", GARBLED)
def test_outcomes_that_are_none(which, tmp_path, monkeypatch):
    library = tmp_path / "garbled.so"
    command = [c_users.mpicc(), "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("GARBLED", GARBLED[which])
    job = killing.KilledJob(4, "majority", "node", "3", 0, die={3: "deposit published:20"})
    verdict = job.run()
    said = (job.folder / "output").read_text(errors="replace")[-3000:]
    faults = [fault for fault in verdict.faults if "was silent" not in fault]  # for how long
    assert not faults and job.killed, (faults, said)
    job.forget()
