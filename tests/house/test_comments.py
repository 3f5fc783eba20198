# SPDX-License-Identifier: Apache-2.0
"""Files named in comments of the C code exist."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
OF_OTHERS = ("mpi.h", "mpif.h", "sys/", "linux/")
NAMED = re.compile(r"[\w/]+\.[ch]\b(?!\()")


def test_files_that_are_named_exist():
    files = [f for top in ("csrc", "tests/c") for f in (ROOT / top).rglob("*.[ch]")]
    paths = [f"/{file.relative_to(ROOT)}" for file in files]
    missing = []
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            for name in () if line.startswith("#include") else NAMED.findall(line):
                known = any(path.endswith(f"/{name}") for path in paths)
                if not known and not name.startswith(OF_OTHERS):
                    missing.append(f"{file.relative_to(ROOT)}:{number}: {name}")
    assert not missing, "\n".join(missing)
