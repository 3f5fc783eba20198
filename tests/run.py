# SPDX-License-Identifier: Apache-2.0
"""Runs the test suite: what needs no launcher without one, then under mpiexec for several numbers
of ranks. All of it for each setting of PARTIALCOLL_DOMAIN, which is how ranks of a node reduce; but
what knows nothing of domains (`WITHOUT_DOMAINS`) in the first one only. What rides on collectives
that are tested for every number of ranks (`test_torch*`) runs on some of them (`TORCH_RANKS`),
since each process takes a while to load PyTorch.

python tests/run.py --ranks "1 2 3 4 5 8" --domains "node rank" [pytest arguments]
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launch import launch, own_segments

TESTS = Path(__file__).resolve().parent
SELF = str(Path(__file__).resolve())
JOB_LIMIT_S = 3600  # of all tests; a test that hangs ends after TEST_LIMIT_S of conftest.py
TORCH_RANKS = (2, 5)  # and one without a launcher
# One-sided communication, arithmetic, simulations, texts: the same in every domain.
WITHOUT_DOMAINS = [
    "bench_train",
    "decentralised",
    "decentralised_mpi",
    "doc",
    "gossip",
    "grid",
    "group",
    "layers",
    "model",
    "moshpit",
    "pairing",
    "policy",
    "quantize",
    "resync",
    "sim",
    "sim_gossip",
    "sim_moshpit",
    "topology",
    "torch",
    "torch_backend",
    "torch_decentralised",
    "torch_decentralised_order",
    "torch_decentralised_state",
    "torch_decentralised_use",
    "torch_hook",
    "torch_names",
    "torch_overlap",
    "torch_state",
]


def worker(arguments):
    """One rank: only rank 0 talks. Each has its own folder for what is temporary: pytest tidies
    up in it, and ranks that do so in one folder at the same time trip over each other."""
    import pytest
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with tempfile.TemporaryDirectory(prefix="partialcoll-rank-") as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        return pytest.main(arguments)


def main():
    if "--worker" in sys.argv:
        sys.exit(worker([a for a in sys.argv[1:] if a != "--worker"]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="1 2 3 4 5 8")
    parser.add_argument("--domains", default="node rank")
    options, arguments = parser.parse_known_args()
    # From elsewhere than the checkout, so that the installed package is tested.
    os.chdir(TESTS)
    begin = time.monotonic()
    code = 0
    with own_segments():
        for i, domain in enumerate(options.domains.split()):
            os.environ["PARTIALCOLL_DOMAIN"] = domain
            left_out = [f"--ignore={TESTS}/test_{name}.py" for name in WITHOUT_DOMAINS if i]
            code = code or run_all(options, [*left_out, *(arguments or [str(TESTS)])], begin)
    sys.exit(code)


def run_all(options, arguments, begin):
    """Every number of ranks in turn; the first exit status that is not 0."""

    def say(what):
        domain = os.environ["PARTIALCOLL_DOMAIN"]
        print(f"== domain {domain}: {what} ({time.monotonic() - begin:.0f} s so far)", flush=True)

    say("without a launcher")
    words = ["--with-mpi", "-q", "--durations=40", *arguments]
    with tempfile.TemporaryDirectory(prefix="partialcoll-alone-") as folder:
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": folder}  # as for ranks, see worker
        if "1" in options.ranks.split():
            environment["PARTIALCOLL_TEST_LEFT_TO_ONE_RANK"] = "1"
        code = subprocess.call([sys.executable, "-m", "pytest", *words], env=environment)
    for ranks in [int(word) for word in options.ranks.split()]:
        if code:
            break
        say(f"{ranks} ranks")
        words = [
            "--worker",
            "--with-mpi",
            "-m",
            "mpi",
            "-q",
            "--no-header",
            "--durations=8",
            *arguments,
        ]
        if ranks not in TORCH_RANKS:
            words += [f"--ignore={path}" for path in sorted(TESTS.glob("test_torch*.py"))]
        code = launch_and_hear(ranks, [SELF, *words])
    return code


def launch_and_hear(ranks, words):
    """Its exit status. Prints what ranks wrote before they ended a job that failed: into files,
    because a launcher drops what it has not passed on yet."""
    code = 1
    with tempfile.TemporaryDirectory(prefix="partialcoll-words-") as folder:
        os.environ["PARTIALCOLL_TEST_WORDS"] = folder
        try:
            code = launch(ranks, words, JOB_LIMIT_S)
        finally:
            files = sorted(Path(folder).iterdir()) if code else []
            said = [(f.name, f.read_text(errors="replace")) for f in files if f.stat().st_size]
            for name, text in said:
                print(f"\n== {name}:\n{text}", flush=True)
            for name, text in said:  # last, where a reader of a long log looks first
                print(f"== {name}: {in_short(text)}", flush=True)
    return code


def in_short(said):
    """The failed test, or where the main thread was when the time was over: down to its test."""
    if failed := re.search("=== rank [0-9]+: (.* failed) ===", said):
        return failed[1]
    main_thread = said.rpartition("(most recent call first)")[2]
    frames = re.findall('File ".*?([^/]*)", line ([0-9]+) in (.*)', main_thread)
    test = [i for i, (file, _, _) in enumerate(frames) if file.startswith("test_")]
    to_test = frames[: test[0] + 1] if test else frames[:4]
    return " < ".join(f"{file}:{line} {function}" for file, line, function in to_test[-6:])


if __name__ == "__main__":
    main()
