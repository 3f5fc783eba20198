# SPDX-License-Identifier: Apache-2.0
"""A device for tests, the hostile fake of tests/fake_cuda: what conftest.py takes over."""

import pytest
from device import DeviceArray, Fake, build
from mpi4py import MPI


@pytest.fixture(scope="module")
def fake():
    """One for the process: a driver stays open."""
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
    """Whatever a test makes on the device goes with it, and nothing was done wrong."""
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
