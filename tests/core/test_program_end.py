# SPDX-License-Identifier: Apache-2.0
"""The reason for a program's end, as `finalize.program_failure()` reports it."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

BEFORE = """
import atexit, sys
from partialcoll._core import finalize
finalize.watch_program()
atexit.register(lambda: print("failure:", finalize.program_failure()))

def handled():
    try:
        raise ValueError("long handled")
    except ValueError as error:
        sys.last_value = error  # as pytest does, and IPython

def caught(status):
    try:
        sys.exit(status)
    except SystemExit:
        pass
"""
PROGRAMS = {
    "raise ValueError('mine')": "ValueError: mine",
    "handled(); raise KeyError('mine')": "KeyError: 'mine'",
    "handled()": None,
    "sys.exit(3)": "SystemExit: 3",
    "sys.exit('no data')": "SystemExit: no data",
    "handled(); sys.exit(0)": None,
    "handled(); sys.exit()": None,
    "caught(3)": None,
    "caught(3); sys.exit(0)": None,
    "caught(0); handled(); sys.exit(1)": "SystemExit: 1",
}


def failure(words, **more):
    """Return the program's report at its end."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, **more
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("failure: ")]
    assert len(said) == 1, done.stdout + done.stderr
    return said[0].removeprefix("failure: ")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("how", ("script", "module"))
def test_a_program(tmp_path, program, how):
    (tmp_path / "program.py").write_text(BEFORE + program + "\n")
    words = ["program.py"] if how == "script" else ["-m", "program"]
    assert failure(words, cwd=tmp_path) == str(PROGRAMS[program])


def test_pytest(tmp_path):
    """The error of a failed test does not end pytest, which keeps it in sys.last_value."""
    test = "def test(): raise ValueError('of a test')\n"
    (tmp_path / "test_it.py").write_text(BEFORE + test)
    words = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_it.py"]
    assert failure(words, cwd=tmp_path) == "None"


def test_an_interactive_session(tmp_path):
    """An error of a command does not end the session."""
    (tmp_path / "before.py").write_text(BEFORE)
    commands = "from before import *\nraise ValueError('of a command')\n1 + 1\n"
    assert failure(["-i", "-q"], input=commands, cwd=tmp_path) == "None"
    assert failure(["-i", "-q"], input="raise KeyError\n" + commands, cwd=tmp_path) == "None"
