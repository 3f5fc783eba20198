# SPDX-License-Identifier: Apache-2.0
"""docs/locking.md lists the locks of csrc/base/lock.h in their order."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]


def test_documented_order_is_the_checked_one():
    header = (ROOT / "csrc/base/lock.h").read_text()
    checked = re.findall(r'X\(LOCK_\w+, "([\w ]+)"\)', header)
    table = (ROOT / "docs/locking.md").read_text().split("## Time limits")[0]
    documented = re.findall(r"^\| ([\w ]+) \| (?:mutex|tried|gate) \|", table, re.MULTILINE)
    assert checked and documented == checked


def test_every_mutex_has_a_rank():
    """Only base/lock.h and its implementation use a mutex of pthread directly."""
    bare = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "csrc").rglob("*.[ch]"))
        if re.search(r"\bpthread_mutex_\w+\(|PTHREAD_MUTEX_INITIALIZER", path.read_text())
        and path.stem not in ("lock", "glibc")
    ]
    assert not bare
