# SPDX-License-Identifier: Apache-2.0
"""File names are words, and remains of tests or builds are not committed."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_SUFFIX = {".ci/run", ".gitignore", ".clang-format", "LICENSE", "Makefile"}
NAME = re.compile(r"(\.?[\w-]+/)*\.?[\w-]+(\.[\w-]+)*\.[a-z]\w*", re.ASCII)


def test_names_of_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode != 0:
        pytest.skip("not a checkout")
    names = listed.stdout.decode(errors="replace").split("\0")[:-1]
    assert len(names) > 500
    strange = [n for n in names if n not in WITHOUT_SUFFIX and not NAME.fullmatch(n)]
    assert not strange, f"{strange}"


def test_workflow_actions_are_pinned():
    """A tag of an action can be moved to other code; a commit cannot. The tag is a comment."""
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    assert workflows
    for path in workflows:
        for action in re.findall(r"^ *-? *uses: *(.+)$", path.read_text(), re.MULTILINE):
            pinned = re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action)
            assert pinned or action.startswith("./"), f"{path.name}: {action}"
