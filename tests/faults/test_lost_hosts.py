# SPDX-License-Identifier: Apache-2.0
"""The majority counts all ranks on a lost host, however many a message can name."""

import subprocess
from pathlib import Path

import c_users
import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [Path(__file__).with_name("lost_hosts.c"), *(ROOT / "csrc/base").glob("*.c")]


def test_more_ranks_than_a_message_names(tmp_path):
    program = tmp_path / "lost_hosts"
    # Only the called functions of the two included files must be defined.
    words = ["-std=c11", "-D_GNU_SOURCE", "-ffunction-sections", "-fdata-sections", "-pthread"]
    link = ["-Wl,--gc-sections", "-Wl,--unresolved-symbols=ignore-all"]
    command = [c_users.mpicc(), *words, "-I", str(ROOT / "csrc"), *map(str, SOURCES), *link]
    subprocess.run([*command, "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
