# SPDX-License-Identifier: Apache-2.0
"""The examples for trainers learn the same on the backend as on gloo, or nearly the same if they do
not wait for late ranks. `make test-trainers` has an environment for each."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.in_turns]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/trainers"
LIMIT_S = 150  # each
ENOUGH = {"lightning": 0.9, "accelerate": 0.9, "transformers": 0.5}  # untrained: 1.1, 1.1, 0.7


@pytest.fixture(scope="module")
def known():
    """Losses on gloo, for comparisons."""
    return {}


@pytest.fixture
def loss(job, known):
    """Return a function that runs an example on some ranks and returns its final loss."""

    def run(*arguments):
        trainer, ranks, *options = arguments
        if arguments in known:
            return known[arguments]
        words, environment = job(EXAMPLES / f"with_{trainer}.py", ranks, *options)
        more = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            words, env={**environment, **more}, capture_output=True, text=True, timeout=LIMIT_S
        )
        said = re.findall(r"loss ([0-9.]+); all ranks have the same model", done.stdout)
        assert done.returncode == 0 and len(said) == 1, done.stdout + done.stderr
        known[arguments] = float(said[0])
        return known[arguments]

    return run


@pytest.mark.parametrize("way", ("gloo", "same", "late"))  # one job each: they take long
@pytest.mark.parametrize("ranks", (2, 4))
@pytest.mark.parametrize("trainer", ENOUGH)
def test_example(loss, trainer, ranks, way):
    pytest.importorskip(trainer)
    if way == "late":
        assert loss(trainer, ranks, "--quorum", "majority", "--late", "20") < ENOUGH[trainer]
        return
    gloo = loss(trainer, ranks, "--backend", "gloo")
    assert gloo < ENOUGH[trainer]
    if way == "same":
        assert loss(trainer, ranks) == pytest.approx(gloo, rel=1e-4)
