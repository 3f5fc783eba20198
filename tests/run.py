# SPDX-License-Identifier: Apache-2.0
"""Runs the test suite: once without a launcher, then under mpiexec for several numbers of ranks.

python tests/run.py --ranks "1 2 3 4 5 8" [pytest arguments]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent
JOB_LIMIT_S = 900


def worker(arguments):
    """One rank: only rank 0 talks."""
    import pytest
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return pytest.main(arguments)


def launch(ranks, arguments):
    """The suite on so many ranks; the exit status."""
    from partialcoll import _mpiexec

    vendor = _mpiexec.flavour()
    command = _mpiexec.command(_mpiexec.find(vendor), vendor, ranks, None, None)
    command += [sys.executable, str(Path(__file__)), "--worker", *arguments]
    return subprocess.run(command, env=_mpiexec.environment(vendor), timeout=JOB_LIMIT_S).returncode


def main():
    if "--worker" in sys.argv:
        sys.exit(worker([a for a in sys.argv[1:] if a != "--worker"]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="1 2 3 4 5 8")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="partialcoll-tests-") as folder:
        # Open MPI leaves a segment behind for each job; here it goes with the folder.
        os.environ["OMPI_MCA_btl_sm_backing_directory"] = folder  # noqa: SIM112
        sys.exit(run_all(options, arguments))


def run_all(options, arguments):
    """Every number of ranks in turn; the first exit status that is not 0."""
    # From elsewhere than the checkout, so that the installed package is tested.
    os.chdir(TESTS)
    paths = arguments or [str(TESTS)]
    print("== without a launcher", flush=True)
    begin = time.monotonic()
    code = subprocess.call([sys.executable, "-m", "pytest", "--with-mpi", "-q", *paths])
    for ranks in [int(word) for word in options.ranks.split()]:
        if code:
            break
        print(f"== {ranks} ranks ({time.monotonic() - begin:.0f} s so far)", flush=True)
        code = launch(ranks, ["--with-mpi", "-m", "mpi", "-q", "--no-header", *paths])
    return code


if __name__ == "__main__":
    main()
