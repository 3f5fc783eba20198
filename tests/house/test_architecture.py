# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md names folders, files and functions that exist."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
STEPS = re.findall(r"`((?:csrc|partialcoll)/[\w/.]+)`:\s+((?:`\w+`(?:, )?\s*)+)", TEXT)


@pytest.mark.parametrize("file, names", STEPS, ids=lambda value: value.strip())
def test_functions_are_where_it_says(file, names):
    source = (ROOT / file).read_text()
    for name in re.findall(r"`(\w+)`", names):
        defined = rf"(def|class|struct|define|enum) {name}\b|^[\w *]*\b\w*{name}\w*\("
        assert re.search(defined, source, re.MULTILINE), f"{name} is not in {file}"


def test_the_way_has_all_its_steps():
    assert len(STEPS) >= 20


def test_every_folder_has_its_row():
    tables = "".join(re.findall(r"^\| `.*$", TEXT, re.MULTILINE))
    folders = {p.parent.relative_to(ROOT / "csrc").as_posix() for p in ROOT.glob("csrc/*/*.c")}
    packages = {p.parent.name for p in (ROOT / "partialcoll").glob("*/__init__.py")}
    packages -= {"processes"}
    assert {name for name in folders | packages if f"`{name}`" not in tables} == set()
