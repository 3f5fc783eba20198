# SPDX-License-Identifier: Apache-2.0
"""A process that replaces another one starts the same program, with MPI first."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

PROGRAM = """
import json, sys
begun = "mpi4py.MPI" in sys.modules
from partialcoll import newcomer
given, sys.argv = sys.argv, sys.argv[:1]  # as a program may do
seen = [__name__, sys.argv[0], given[1:], begun, sys.path[0], newcomer.command()]
print(json.dumps(seen))
"""
WORDS = ["--steps", "3", "-c", "a b"]


@pytest.fixture
def ask(clean_environment, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/program.py").write_text(PROGRAM)

    def seen(*words):
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**clean_environment, "PYTHONPATH": str(tmp_path / "folder")},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return seen


@pytest.mark.parametrize("how", [["folder/program.py"], ["-m", "program"]])
@pytest.mark.parametrize("options", [[], ["-X", "dev", "-B"]])
def test_the_same_program(ask, how, options):
    first = ask(*options, *how, *WORDS)
    assert first[0] == "__main__" and first[2] == WORDS and not first[3]
    command = first[-1]
    assert command[0] == sys.executable and command[1 : 1 + len(options)] == options
    second = ask(*command[1:])
    assert second[0] == "__main__" and second[2] == WORDS and second[3], "without MPI at first"
    assert second[4] == first[4], "modules of its own are found elsewhere"
    assert second[-1] == command, "a newcomer starts newcomers likewise"


def test_code_is_started_as_it_was(ask):
    first = ask("-c", PROGRAM, *WORDS)
    assert first[-1] == [sys.executable, "-c", PROGRAM, *WORDS]
