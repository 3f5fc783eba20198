# SPDX-License-Identifier: Apache-2.0
"""Tests under mpiexec: all ranks run the same tests in the same order.

A rank that fails prints its failure and ends the whole job, because the others would wait for
it. A test that does not end prints the stack of every thread on every rank and ends the job.
"""

import faulthandler
import os
import sys

import pytest
from mpi4py import MPI

TEST_LIMIT_S = 180.0


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and MPI.COMM_WORLD.size > 1:
        rank = MPI.COMM_WORLD.rank
        print(
            f"\n=== rank {rank}: {item.nodeid} failed ===\n{report.longreprtext}",
            file=sys.stderr,
            flush=True,
        )
        MPI.COMM_WORLD.Abort(1)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    faulthandler.dump_traceback_later(TEST_LIMIT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def comm():
    """A communicator of its own for each test, so that a test cannot meet another's."""
    dup = MPI.COMM_WORLD.Dup()
    yield dup
    dup.Barrier()
    dup.Free()


@pytest.fixture
def clean_environment():
    """The environment without what a launcher or the user has set, for subprocesses."""
    drop = ("PMI", "OMPI", "PMIX", "PRTE", "PARTIALCOLL", "HYDRA", "MPIR", "MPIEXEC", "GFORTRAN")
    keep = ("OMPI_MCA_btl_sm_backing_directory",)
    return {k: v for k, v in os.environ.items() if k in keep or not k.startswith(drop)}
