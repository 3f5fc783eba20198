# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests with the hostile fake device of tests/fake_cuda; conftest.py imports them."""

import pytest
from device import DeviceArray, Fake, build
from mpi4py import MPI


@pytest.fixture(scope="module")
def fake():
    """Return the process's fake: a driver stays open."""
    return shared_fake()


def shared_fake(found=[]):  # noqa: B006
    if not found:
        comm = MPI.COMM_WORLD
        path = comm.bcast(build() if comm.rank == 0 else None)
        found.append(Fake(path))
        comm.Barrier()
        if comm.rank == 0:
            path.unlink()
    return found[0]


@pytest.fixture
def nothing_left(fake):
    """Free all memory that a test allocates on the device, and check that no call was wrong."""
    made = []

    def array(like, device=0, **options):
        made.append(DeviceArray(fake, like, device, **options))
        return made[-1]

    before = fake.counts()
    yield array
    for one in made:
        one.free()
    after = fake.counts()
    assert after["complaints"] == before["complaints"]
    assert after["live"] == before["live"]
