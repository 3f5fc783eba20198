# SPDX-License-Identifier: Apache-2.0
"""The timeline is valid JSON at any time, with each call once and its phases in order."""

import json

import pytest

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()
    yield
    pct.stop_timeline()


def read(path):
    return json.loads(path.read_text())


def spans(events):
    """Return (name, begin, end) of each number's events."""
    found = {}
    for event in events:
        if event["ph"] in "be":
            of_number = found.setdefault(event["id"], {})
            of_number.setdefault(event["name"], []).append(event["ts"])
    return list(found.values())


def test_calls_and_steps(comm, tmp_path):
    file = tmp_path / "timeline.json"
    pct.start_timeline(str(file), mark_cycles=True)
    pct.allreduce(torch.ones(3), name="it's")
    pct.synchronize(pct.allreduce_async(torch.ones(3), name="later"))
    pct.broadcast(torch.ones(2), 0)
    weight = torch.nn.Parameter(torch.zeros(2))
    for strategy in (pct.Allreduce(), pct.LocalSGD(local_steps=1)):
        opt = pct.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), strategy=strategy)
        weight.sum().backward()
        opt.step()
        opt.close()
    if comm.rank:
        assert not file.exists()
        return
    events = read(file)  # before it ends
    assert "start_time_since_epoch_in_micros" in events[0]["args"]
    assert any(event["name"] == "CYCLE_START" for event in events)
    there = spans(events)
    for track, *phases in (
        ("allreduce.it's", "NEGOTIATE_ALLREDUCE", "ALLREDUCE"),
        ("allreduce.later", "NEGOTIATE_ALLREDUCE", "ALLREDUCE"),
        ("broadcast.noname", "NEGOTIATE_BROADCAST", "BROADCAST"),
        ("optimizer.step", "NEGOTIATE_ALLREDUCE", "UPDATE"),
        ("optimizer.step", "EXCHANGE"),
    ):
        (one,) = [one for one in there if set(one) == {track, *phases}]
        moments = [moment for phase in phases for moment in one[phase]]
        assert moments == sorted(moments) and len(moments) == 2 * len(phases)
        assert one[track] == [moments[0], moments[-1]]


def test_it_ends_and_restarts(comm, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    pct.start_timeline(first)
    pct.barrier()
    pct.start_timeline(second)
    pct.allreduce(torch.ones(1), name="x")
    pct.stop_timeline()
    pct.stop_timeline()
    pct.allreduce(torch.ones(1), name="y")
    with pytest.raises((pc.MismatchError, TypeError)):  # on the others, and on this one
        pct.allreduce(torch.ones(1) if comm.rank else 3)
    if comm.rank == 0:
        assert [set(one) for one in spans(read(first))] == [
            {"barrier.noname", "NEGOTIATE_BARRIER", "BARRIER"}
        ]
        assert "allreduce.x" in second.read_text() and "allreduce.y" not in second.read_text()
        assert "CYCLE_START" not in second.read_text()
        with pytest.raises(OSError):
            pct.start_timeline(tmp_path / "no folder" / "file")
