# SPDX-License-Identifier: Apache-2.0
"""A rank that is missing in a collective call of partialcoll.torch is named, with the call."""

import re

import pytest

pytest.importorskip("torch")

# A late rank makes its call after another rank has reported it.
SAYS = """
import logging, re

class Says(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        with open("said", "a") as file:
            file.write(record.getMessage() + chr(10))

logging.getLogger("partialcoll").addHandler(Says())

def late(call, rank=1):
    said = re.compile(f"{call}: rank {rank} has not ")
    while comm.rank == rank:
        if os.path.exists("said") and said.search(open("said").read()):
            break
        time.sleep(0.01)

"""
LATE = """
import torch
import partialcoll.torch as pct

model = torch.nn.Linear(2, 2)
inner = torch.optim.SGD(model.parameters(), 0.1)
"""
OF_ALL_BUT_0 = r"allreduce of float32 \(3,\), Average, name='of all but 0'"
CALLS = {
    "init": "pct.init()",
    "barrier": "pct.barrier()",
    r"allreduce of float32 \(3,\), Average, name='early'": (
        "pct.allreduce(torch.ones(3), name='early')"
    ),
    r"asynchronous allreduce of float32 \(3,\), Average, name='by name'": (
        "pct.synchronize(pct.allreduce_async(torch.ones(3), name='by name'))"
    ),
    r"allgather of rows of float32 \(\)": "pct.synchronize(pct.allgather_async(torch.ones(3)))",
    OF_ALL_BUT_0: "pct.synchronize(pct.allreduce_async(torch.ones(3), name='of all but 0'))",
    "broadcast_parameters from rank 0": "pct.broadcast_parameters(model.state_dict())",
    "DistributedOptimizer": "o = pct.DistributedOptimizer(inner, model.named_parameters())",
    "broadcast_optimizer_state from rank 0": "pct.broadcast_optimizer_state(o)",
    "broadcast_object from rank 0": "pct.broadcast_object(1)",
    "allgather_object": "pct.allgather_object(1); o.close()",
    "shutdown": "pct.shutdown()",
}


def test_missing_in_calls(run):
    script = SAYS + LATE
    for call, statement in CALLS.items():
        script += f"late({call!r}, {int(call != OF_ALL_BUT_0)}); {statement}\n"
    done = run(script, ranks=2, env={"PARTIALCOLL_STALL_WARN": "0.25"})
    assert done.returncode == 0, done.stderr
    for call in CALLS:
        who = int(call != OF_ALL_BUT_0)
        said = rf"waiting for [\d.]+ s in partialcoll\.torch[.:] ?.*{call}: rank {who} has not "
        assert re.search(said, done.stderr), (call, done.stderr)
    absent = [line for line in done.stderr.splitlines() if "rank 0 has not" in line]
    assert all("name='of all but 0': rank 0 has not called it" in one for one in absent)


def test_an_error_before_the_call(run, tmp_path):
    """The other ranks wait for a rank whose program failed before the call, and report it."""
    script = """
import partialcoll.torch as pct
if comm.rank == 1:
    try:
        int("no number")
    except ValueError:
        late("init")
        comm.Abort(3)
pct.init()
"""
    run(SAYS + script, ranks=2, env={"PARTIALCOLL_STALL_WARN": "0.25"})
    assert "in partialcoll.torch.init: rank 1 has not called it" in (tmp_path / "said").read_text()
