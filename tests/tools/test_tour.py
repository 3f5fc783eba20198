# SPDX-License-Identifier: Apache-2.0
"""``python -m partialcoll.tour``: each stop runs and prints what it demonstrates."""

import subprocess
import sys

import pytest

from partialcoll.tour import STOPS

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi, pytest.mark.in_turns]


def tour(folder, env, *words):
    """Run the tour. Standard input is no terminal, so it asks no questions."""
    command = [sys.executable, "-m", "partialcoll.tour", *words]
    return subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=300, input=""
    )


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop(job, clean_environment, tmp_path, stop):
    """`job` marks this as a test that starts jobs."""
    done = tour(tmp_path, clean_environment, stop)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert STOPS[stop].title in said
    if "Left out" not in said:
        assert said.index(STOPS[stop].words) < said.index(STOPS[stop].after[:40])
        assert (tmp_path / "partialcoll-tour" / f"{stop}.png").stat().st_size > 5000


def test_unknown_stop(clean_environment, tmp_path):
    done = tour(tmp_path, clean_environment, "elsewhere")
    assert done.returncode == 2 and "skew" in done.stderr
