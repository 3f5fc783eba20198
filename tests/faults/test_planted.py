# SPDX-License-Identifier: Apache-2.0
"""Check that `bench/run.py faults` detects mistakes of the recovery: the core is built with one of
them, and jobs of the same seeds are judged with and without it."""

import json
import os
import subprocess
import sys
from collections import Counter

import planted
import pytest
from ulfm import needs_ulfm

pytestmark = [needs_ulfm, pytest.mark.one_domain, pytest.mark.in_turns]

SEEDS = ("3", "7")  # domains of one rank each, where results reach ranks one after the other
MORE = ("11", "15", "19")
MISTAKES = {
    "recovery does not take back a frozen deposit": "lost",
    "the last result is copied from the rank's own domain, which may lack it": "diverged",
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return planted.Libraries(tmp_path_factory.mktemp("planted") / "core")


def total_of(package, folder, seeds=SEEDS):
    """Return the sums of the rows of these seeds, by the package in this folder."""
    total, rows = Counter(), folder / "faults.json"
    words = ["faults", "-n", "8", "--kills", "42", "--json", str(rows)]
    env = {**os.environ, "PYTHONPATH": str(package), "TMPDIR": str(folder)}
    for seed in seeds:
        command = [
            sys.executable,
            str(planted.ROOT / "bench/run.py"),
            *words,
            "--seeds",
            seed,
            seed,
        ]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert rows.exists(), done.stderr
        row = json.loads(rows.read_text())["rows"][0]
        total.update({name: value for name, value in row.items() if isinstance(value, int)})
        rows.unlink()
    return total, done.stderr


def test_nothing_is_found_without_a_mistake(libraries, tmp_path):
    row, said = total_of(libraries.package(), tmp_path)
    assert row["kills"] == 84 and row["rounds"] > 0
    assert row["hangs"] == row["lost"] == row["diverged"] == 0, said


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_found(libraries, tmp_path, mistake):
    package = libraries.package(mistake)
    for seed in (*SEEDS, *MORE):  # until it shows: the seed does not determine when ranks are late
        row, said = total_of(package, tmp_path, [seed])
        if row[MISTAKES[mistake]] > 0:
            return
    raise AssertionError((row, said))
