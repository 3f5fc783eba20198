# SPDX-License-Identifier: Apache-2.0
"""Run a test suite on each rank of a job of suites.py, and write the outcomes.

As a script it runs torch's own tests of torch.distributed, which are in torch's wheel. The tests
ask by name which backend they run on: all of them take ours for gloo. Some tests, of groups of
ranks 1 and 2, run on fewer than 8 ranks only if the environment says that the backend is MPI; with
3 or more ranks it does, on both sides. Needs expecttest.

    suite_rank.py RANKS             print the names of the tests, and the suite's digest
    suite_rank.py BACKEND TEST...   run them; each rank leaves its outcomes

As a plugin of pytest it leaves the outcomes of Horovod's tests.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "PARTIALCOLL_SUITE_FOLDER"  # in the environment: where outcomes are left
RANKS = "PARTIALCOLL_SUITE_RANKS"  # likewise: that leave them


class Outcome(NamedTuple):
    """what: passed, skipped, failed, crashed or hangs. said: the last message."""

    what: str
    said: str = ""


READY = ""  # in place of a test: it can begin


def folder(test: str) -> Path:
    return Path(os.environ[FOLDER], test)


def leave(test: str, outcome: Outcome) -> None:
    """Write the outcome atomically, then wait for the other ranks: if this rank crashed in the next
    test, the launcher would end ranks that have not written theirs. After a failed test the rank
    waits to be ended, since others may be in the middle of it."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    fresh = folder(test) / f".{rank}"
    fresh.write_text(json.dumps(outcome))
    fresh.rename(folder(test) / f"rank-{rank}")
    while outcome.what == "failed":
        time.sleep(1)
    while len(list(folder(test).glob("rank-*"))) < int(os.environ[RANKS]):
        time.sleep(0.005)


MODULE = "torch.testing._internal.distributed.distributed_test"


class Named(str):
    """The name of a backend, which is equal to "gloo" as well."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def load(backend: str, ranks: int) -> Any:
    """Return torch's module with that backend, which some tests ask for during the import."""
    os.environ.update({"BACKEND": "gloo", "WORLD_SIZE": str(ranks)})
    module = importlib.import_module(MODULE)
    if ranks > 2:
        os.environ["BACKEND"] = "mpi"
    module.BACKEND = Named(backend)  # type: ignore[attr-defined]
    return module


def names(module: Any) -> list[str]:
    tests = module.DistributedTest._DistTestBase
    there = [name for name in dir(tests) if name.startswith("test_")]
    return [n for n in there if not getattr(getattr(tests, n), "__unittest_skip__", False)]


def attempt(module: Any, name: str, rank: int, ranks: int) -> Outcome:
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.common_utils import set_rng_seed

    class TorchTests(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc]
        pass

    place = folder(name)
    for part in ("barrier", "test_dir", "init_dir"):  # the suite's own
        (place / part).mkdir(exist_ok=True)
    os.environ["TEMP_DIR"] = str(place)
    os.environ["INIT_METHOD"] = f"file://{place}/init_dir/shared_init_file"
    module.Barrier.barrier_id = 0
    test = TorchTests(name)
    test.rank, test.file_name = rank, str(place / "store")
    seconds = module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
    skips = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    outcome = Outcome("passed")
    try:
        dist.init_process_group(
            str(module.BACKEND),
            init_method=test.init_method,
            world_size=ranks,
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        test._barrier()
        set_rng_seed()
        try:
            getattr(test, name)()
        except unittest.SkipTest as skip:
            outcome = Outcome("skipped", str(skip))
        except SystemExit as end:
            if end.code not in skips:
                raise
            outcome = Outcome("skipped", skips[end.code])
        if dist.is_initialized():
            test._barrier()
            dist.destroy_process_group()
    except BaseException as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return Outcome("failed", said)
    return outcome


_outcome = Outcome("passed")  # of the test that pytest runs


def pytest_collection_finish() -> None:
    leave(READY, Outcome("passed"))


def pytest_runtest_logreport(report: Any) -> None:
    """Leave the outcome of a test: of setup, call and teardown, what is not passed counts."""
    global _outcome
    test = report.nodeid.rpartition("::")[2]
    if report.skipped:
        _outcome = Outcome("skipped", str(report.longrepr[2]))
    elif report.failed:
        said = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        leave(test, Outcome("failed", (said.splitlines() or [""])[0]))
    if report.when == "teardown":
        leave(test, _outcome)
        _outcome = Outcome("passed")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        from mpi4py import MPI

        import partialcoll.torch  # noqa: F401

        backend, *tests = sys.argv[1:]
        module = load(backend, MPI.COMM_WORLD.size)
        leave(READY, Outcome("passed"))
        for test in tests:
            leave(test, attempt(module, test, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size))
    else:
        module = load("gloo", int(sys.argv[1]))
        digest = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
        print(json.dumps({"tests": names(module), "digest": digest}))
