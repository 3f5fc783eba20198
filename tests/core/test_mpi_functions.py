# SPDX-License-Identifier: Apache-2.0
"""MPI functions that the compiled libraries use: only those of MPI 3.0, except weak ones."""

import re
import subprocess
from pathlib import Path

import pytest

import partialcoll

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

PACKAGE = Path(partialcoll.__file__).parent
LIBRARIES = sorted([*PACKAGE.glob("_core_*.so"), *PACKAGE.glob("lib/*.so")])


def mpi_3():
    text = (Path(__file__).parent / "mpi-3.0.txt").read_text()
    return {name for line in text.splitlines() if line[0] != "#" for name in line.split()}


def undefined(library):
    """Return the MPI functions that it requires, without MPI_ or PMPI_, and the weak ones."""
    words = ["nm", "-D", "--undefined-only", str(library)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.findall(r" (\w) P?MPI_(\w+)$", said, re.MULTILINE)
    return {n for kind, n in found if kind == "U"}, {n for kind, n in found if kind != "U"}


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_required_mpi_functions(library):
    needed, newer = undefined(library)
    assert len(needed) > 50 and not needed - mpi_3(), needed - mpi_3()
    assert newer and not newer & mpi_3(), "a weak function needs a reason"


def test_three_libraries():
    assert len(LIBRARIES) >= 3
