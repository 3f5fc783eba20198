# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md names folders, files and functions that exist."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
# The last column of a table: a folder of csrc, and functions that are defined there.
STEPS = re.findall(r"\| `([\w/]+)`: ((?:`\w+`(?:, )?)+) \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("folder, names", STEPS)
def test_functions_are_where_it_says(folder, names):
    source = "".join(path.read_text() for path in sorted((ROOT / "csrc" / folder).glob("*.[ch]")))
    for name in re.findall(r"`(\w+)`", names):
        defined = rf"^(?:[a-z_][\w ]*[ *])?{name}\([^;{{}}]*\)\s*\{{"
        assert re.search(defined, source, re.MULTILINE), f"{name} is not in csrc/{folder}"


def test_the_paths_have_all_their_steps():
    assert len(STEPS) >= 60


def test_files_exist():
    files = re.findall(r"`(csrc/[\w/.]+)`", TEXT)
    assert files
    assert not [file for file in files if not (ROOT / file).exists()]


def test_every_folder_has_its_row():
    tables = "".join(re.findall(r"^\| `.*$", TEXT, re.MULTILINE))
    folders = {p.parent.relative_to(ROOT / "csrc").as_posix() for p in ROOT.glob("csrc/*/*.c")}
    packages = {p.parent.name for p in (ROOT / "partialcoll").glob("*/__init__.py")}
    packages -= {"processes"}
    assert {name for name in folders | packages if f"`{name}`" not in tables} == set()
