# SPDX-License-Identifier: Apache-2.0
"""Child processes of a rank that import its program: DataLoader workers and process pools."""

import subprocess

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.few_ranks]

PROGRAM = """
import os, sys
from joblib.externals.loky import get_reusable_executor
import torch
import torch.distributed as dist
import partialcoll.torch as hvd
from partialcoll.errors import StateError

assert "mpi4py.MPI" not in sys.modules
assert "RANK" in os.environ and "MASTER_PORT" not in os.environ

def refused(call):
    try:
        call()
    except StateError as error:
        return "child process of a rank" in str(error)

def work():
    calls = (hvd.init, lambda: dist.init_process_group("partialcoll"))
    return [refused(call) for call in calls]

def check(_):
    assert work() == [True, True]

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return torch.tensor(work())

if __name__ == "__main__":
    hvd.init()
    for how in ("fork", "spawn", "forkserver"):
        loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context=how)
        assert [answer.tolist() for answer in loader] == [[[True, True]]], how
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum)[0] == hvd.size()
    torch.multiprocessing.spawn(check)
    with get_reusable_executor(1) as pool:
        assert pool.submit(work).result() == [True, True]
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum)[0] == hvd.size()
    os.write(1, b"done\\n")
"""


def test_children_that_import_the_program(job, tmp_path):
    """Children can import partialcoll.torch, but are refused as ranks. The ranks continue."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    words, env = job(script, 2)
    done = subprocess.run(
        words, env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stderr
