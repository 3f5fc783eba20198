# SPDX-License-Identifier: Apache-2.0
"""Tensors on a device: real ones of PyTorch, whose memory is the fake's (tests/fake_torch)."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

import fake_torch

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler, for tests/fake_torch")
    support = Path(fake_torch.__file__).parent
    return {**fake_torch.build(tmp_path_factory.mktemp("torch")), "PYTHONPATH": str(support)}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("the_fake_itself", 1),
        ("tensors", 2),
        ("as_on_the_host", 3),
        ("calls", 2),
        ("process_group", 2),
        ("ddp_hook", 2),
        ("strategies_that_wait_for_nobody", 2),
        ("around_the_optimizer", 2),
    ],
)
def test_on_a_device(run, environment, name, ranks):
    """See device_jobs.py."""
    program = (Path(__file__).parent / "device_jobs.py").read_text()
    done = run(program, ranks, env=environment, arguments=[name])
    assert done.returncode == 0, done.stderr
