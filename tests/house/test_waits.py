# SPDX-License-Identifier: Apache-2.0
"""Waits use the monotonic clock, so a change of the wall clock does not affect them."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]

# Files that need the time of day, and their purpose. None of them waits by it.
TIME_OF_DAY = {
    "csrc/group/group_agent.c": "the priority of a rank, compared between hosts",
    "partialcoll/_core/timeline.py": "when a timeline began",
    "partialcoll/tools/doctor.py": "the age of files",
    "partialcoll/torch/verbs.py": "which rank came last, compared between hosts",
}
WALL = re.compile(
    r"CLOCK_REALTIME|\bgettimeofday\(|\btime\(NULL\)|\btime\.time\(|\bdatetime\.(now|utcnow)\("
    r"|pthread_mutex_timedlock\(|\bsem_timedwait\(|_timedrdlock\(|_timedwrlock\("
)


def sources():
    for pattern in ("csrc/**/*.[ch]", "partialcoll/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def without_comments(name, text):
    if name.endswith(".py"):
        return re.sub(r"#.*", "", text)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def test_the_wall_clock_is_read_for_no_wait():
    """Only the files above read it, and each of them does."""
    readers = {name for name, text in sources() if WALL.search(without_comments(name, text))}
    assert readers == set(TIME_OF_DAY)


def test_timed_conditions_have_the_monotonic_clock():
    """Code that waits for a condition with a limit sets its clock."""
    for name, text in sources():
        if "pthread_cond_timedwait(" in without_comments(name, text):
            assert "pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)" in text, name
