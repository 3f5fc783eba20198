# SPDX-License-Identifier: Apache-2.0
"""The example strategy of docs/decentralized.md works as printed there."""

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from strategies import OPTIMIZERS, loss, mean_of, network, same_everywhere, vector, wrap  # noqa: E402

import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def own():
    text = (DOCS / "decentralized.md").read_text()
    (code,) = re.findall(r"## Write your own\n.*?```python\n(.*?)```", text, re.DOTALL)
    names = {"__name__": "own_strategy"}
    exec(compile(code, "decentralized.md", "exec"), names)
    return names["PullToMean"]


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


def train(model, opt, rank, steps):
    for step in steps:
        opt.zero_grad()
        loss(model, rank, step).backward()
        opt.step()


@pytest.mark.parametrize("part", (0.0, 0.5, 1.0))
def test_moves_to_the_mean(comm, own, part):
    model, plain = network(), network()
    opt = wrap(model, strategy=own(every=3, part=part))
    train(model, opt, comm.rank, range(3))
    train(plain, OPTIMIZERS["sgd"](plain.parameters()), comm.rank, range(3))
    x = vector(plain)
    expected = x + part * (mean_of(comm, x) - x)
    np.testing.assert_allclose(vector(model), expected, rtol=1e-5, atol=1e-6)
    assert opt.metrics().communications == 1
    opt.close()


def test_joins_and_saves(comm, own):
    """Ranks with different numbers of steps end together, and continue from a checkpoint."""
    model, other = network(), network(1)
    opt = wrap(model, strategy=own(every=2))
    train(model, opt, comm.rank, range(5 + comm.rank))
    state = opt.state_dict()
    before = vector(model)
    opt.join()
    assert same_everywhere(comm, model)
    opt.close()
    again = wrap(other, strategy=own(every=2))
    again.load_state_dict(state)
    np.testing.assert_array_equal(vector(other), before)
    again.close()


def test_refuses_bad_options(comm, own):
    with pytest.raises(ValueError, match="every, part: expected"):
        wrap(network(), strategy=own(part=2.0))
    comm.Barrier()
    wrap(network(), strategy=own()).close()
