# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md lists the places that a new policy, algorithm, object or strategy needs.

Each list is compared with the sources for an existing one: every place mentions it, and every file
that mentions it is in the list, by itself or by its folder.
"""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
# By heading: the pattern of the existing one in sources. An algorithm has the name of an author.
EXISTING = {
    "To add a policy": r"last_of|LAST_OF|LastOf",
    "To add an algorithm": r"(?i:rabenseifner)(?!, Gropp)",
    "To add an object": r"GroupAllreduce_init|pcoll_group_create|^group +core",
    "To add a strategy": r"(?<![A-Za-z-])(?i:d-?psgd)",
}
SOURCES = ("csrc", "partialcoll", "tests", "docs")


def places(heading):
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [place for cell in cells for place in re.findall(r"`([^`]+)`", cell)]


def mentions(path, pattern):
    return re.search(pattern, path.read_text(errors="replace"), re.MULTILINE) is not None


def files_that_mention(pattern):
    listed = subprocess.run(
        ["git", "ls-files", "-z", *SOURCES], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a checkout")
    files = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    files.discard(Path(__file__).relative_to(ROOT).as_posix())
    return {name for name in files if mentions(ROOT / name, pattern)}


@pytest.mark.parametrize("heading", EXISTING)
def test_places(heading):
    found, listed = files_that_mention(EXISTING[heading]), places(heading)
    assert len(listed) > 5
    needless = [p for p in listed if not any(f == p or f.startswith(f"{p}/") for f in found)]
    assert not needless, "do not mention it"
    missing = [f for f in found if not any(f == p or f.startswith(f"{p}/") for p in listed)]
    assert not missing, "mention it and are not listed"
