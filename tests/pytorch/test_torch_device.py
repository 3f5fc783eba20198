# SPDX-License-Identifier: Apache-2.0
"""Tensors on PyTorch's fake device, with memory of tests/fake_torch, and on a CUDA device."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

import fake_torch
import torch

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]


@pytest.fixture(scope="module", params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def environment(request, tmp_path_factory):
    own = {"PYTHONPATH": str(Path(fake_torch.__file__).parent)}
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device, and PyTorch for it")
        return own
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler, for tests/fake_torch")
    return {**fake_torch.build(tmp_path_factory.mktemp("torch")), **own}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("the_fake_itself", 1),
        ("tensors", 2),
        ("as_on_the_host", 3),
        ("calls", 2),
        ("process_group", 2),
        ("ddp_hook", 2),
        ("strategies_without_waits", 2),
        ("around_the_optimizer", 2),
        ("bench_gpu", 2),
    ],
)
def test_on_a_device(run, environment, name, ranks):
    """See device_jobs.py."""
    program = (Path(__file__).parent / "device_jobs.py").read_text()
    done = run(program, ranks, env=environment, arguments=[name])
    assert done.returncode == 0, done.stderr
