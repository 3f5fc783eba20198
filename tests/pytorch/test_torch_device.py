# SPDX-License-Identifier: Apache-2.0
"""Tensors on a device: real ones of PyTorch, whose memory is the fake's (tests/fake_torch)."""

import shutil
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

import fake_torch

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]
BEGIN = f"""
import sys
sys.path.insert(0, {str(Path(fake_torch.__file__).parent)!r})
import fake_torch, torch
fake, device = fake_torch.load()
def refused(kind, words, call, *arguments, **options):
    try:
        call(comm, *arguments, **options)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError("it was not refused")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler, for tests/fake_torch")
    return fake_torch.build(tmp_path_factory.mktemp("torch"))


def test_the_fake_itself(run, environment):
    """A model is trained there as on the CPU, and its memory is the device's."""
    script = """
        def train(where):
            torch.manual_seed(0)
            model = torch.nn.Linear(5, 3).to(where)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for step in range(4):
                optimizer.zero_grad()
                (model(torch.ones(4, 5, device=where) * step) ** 2).mean().backward()
                optimizer.step()
            return model.weight.detach()
        there = train(device)
        assert there.device.type == device
        assert torch.equal(there.cpu(), train("cpu"))
        assert fake.counts()["live"] > 0
    """
    done = run(BEGIN + textwrap.dedent(script), 1, env=environment)
    assert done.returncode == 0, done.stderr


def test_tensors(run, environment):
    """All dtypes; what an operation of torch's has written late is summed."""
    script = """
        for name in ("float16 bfloat16 float32 float64 complex64 int8 uint8 int32 int64").split():
            x = torch.zeros(3, 50, dtype=getattr(torch, name), device=device)
            y = torch.zeros_like(x)
            with pc.Allreduce_init(comm, x, y, quorum="full") as h:
                for step in range(3):
                    x.fill_(step + comm.rank)
                    h.Start()
                    h.Wait(timeout=60)
                    total = sum(step + rank for rank in range(comm.size))
                    assert (y.cpu() == total).all(), name
        mean = torch.full((40,), float(comm.rank), dtype=torch.bfloat16, device=device)
        with pc.GroupAllreduce_init(comm, MPI.IN_PLACE, mean, grid=(comm.size,)) as group:
            group.Start()
            group.Wait(timeout=60)
            assert (mean.cpu() == (comm.size - 1) / 2).all()
        x, y = (torch.zeros(4, 6, device=device) for _ in range(2))
        refused(ValueError, "C-contiguous", pc.Allreduce_init, x.t(), y)
        refused(TypeError, "requires no grad", pc.Allreduce_init, x.requires_grad_(), y)
        complaints = fake.counts()["complaints"]
        assert complaints == 0, complaints
    """
    done = run(BEGIN + textwrap.dedent(script), 2, env=environment)
    assert done.returncode == 0, done.stderr
