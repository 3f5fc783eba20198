# SPDX-License-Identifier: Apache-2.0
"""A rank that does not come to a collective call of partialcoll.torch is named, with the call."""

import re

import pytest

pytest.importorskip("torch")

LATE = """
import torch
import partialcoll.torch as pct

def late():  # rank 1, each time
    if comm.rank == 1:
        time.sleep(0.8)

model = torch.nn.Linear(2, 2)
inner = torch.optim.SGD(model.parameters(), 0.1)
late(); pct.init()
late(); pct.barrier()
late(); pct.allreduce(torch.ones(3), name="early")
late(); pct.synchronize(pct.allreduce_async(torch.ones(3), name="by name"))
late(); pct.synchronize(pct.allgather_async(torch.ones(3)))
if comm.rank == 0:  # who else could tell who is missing
    time.sleep(0.8)
pct.synchronize(pct.allreduce_async(torch.ones(3), name="of all but 0"))
late(); pct.broadcast_parameters(model.state_dict())
late(); optimizer = pct.DistributedOptimizer(inner, model.named_parameters())
late(); pct.broadcast_optimizer_state(optimizer)
late(); pct.broadcast_object(1)
late(); pct.allgather_object(1)
late(); optimizer.close()
late(); pct.shutdown()
"""
CALLS = (
    "init",
    "barrier",
    r"allreduce of float32 \(3,\), Average, name='early'",
    r"asynchronous allreduce of float32 \(3,\), Average, name='by name'",
    r"allgather of rows of float32 \(\)",
    "broadcast_parameters",
    "DistributedOptimizer",
    "broadcast_optimizer_state",
    "broadcast_object",
    "allgather_object",
    "shutdown",
)


def test_missing_in_calls(run):
    done = run(LATE, ranks=2, env={"PARTIALCOLL_STALL_WARN": "0.25"})
    assert done.returncode == 0, done.stderr
    for call in CALLS:
        said = rf"waiting for [\d.]+ s in partialcoll\.torch[.:] ?{call}: rank 1 has not "
        assert re.search(said, done.stderr), (call, done.stderr)
    absent = [line for line in done.stderr.splitlines() if "rank 0 has not" in line]
    assert absent and all("name='of all but 0': rank 0 has not called it" in one for one in absent)


def test_an_error_before_the_call(run):
    """The others wait for a rank whose program failed before it came: they say which."""
    script = """
    import partialcoll.torch as pct
    if comm.rank == 1:
        try:
            int("no number")
        except ValueError:
            time.sleep(0.8)
            comm.Abort(3)
    pct.init()
    """
    done = run(script, ranks=2, env={"PARTIALCOLL_STALL_WARN": "0.25"})
    assert "in partialcoll.torch.init: rank 1 has not called it" in done.stderr
