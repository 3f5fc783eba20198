# SPDX-License-Identifier: Apache-2.0
"""Averaging in one group of 8: hivemind's DecentralizedAverager against GroupAllreduce, by turns.

Both on this machine alone, over float32 vectors, every result checked. hivemind needs torch, so it
has an interpreter of its own:

    python -m venv H && H/bin/pip install torch==2.13.0 hivemind
    python bench/hivemind.py --hivemind H/bin/python [-n 8] [--size 4M] [--rounds 7] [--json F]

"step" is what the caller waits for, from the moment that all are told to begin to the moment that
the last one has the average: with hivemind finding the group and averaging; with ours Start and
Wait. "allreduce" is hivemind's averaging alone, its group known; ours forms the group in the
background and says how long Wait was held up for that, so it has no second figure. hivemind is
given times as short as it goes on with, not its defaults of 5 s and 3 s (see `PEER`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SELF = os.path.abspath(__file__)
PEER = {"min_matchmaking_time": 1.0, "request_timeout": 0.5}  # seconds
LOCAL = {
    "host_maddrs": ["/ip4/127.0.0.1/tcp/0"],
    "nat_port_map": False,
    "auto_nat": False,
    "use_relay": False,
    "use_ipfs": False,
}
COLUMNS = (
    "method",
    "what",
    "ranks",
    "bytes",
    "seconds",
    "fastest",
    "slowest",
    "rounds",
    "exact_rounds",
    "times_ours",
)


def say(**what: Any) -> None:
    print("@" + json.dumps(what), flush=True)


def begin_at(line: str) -> float:
    """All begin at one moment that they are told."""
    moment = float(line)
    time.sleep(max(0.0, moment - time.time()))
    return moment


# A peer of hivemind


def peer(index: int, ranks: int, count: int, initial: str) -> None:
    """One process of the swarm: obeys standard input, a moment to begin at in each line."""
    sys.path.pop(0)  # this very file is called hivemind
    import hivemind
    import torch

    torch.set_num_threads(1)

    class Timed(hivemind.DecentralizedAverager):  # type: ignore[misc]
        """Knows when its allreduce began and ended; the process that runs it is another."""

        def __init__(self, *words: Any, **how: Any) -> None:
            import multiprocessing

            self.span = multiprocessing.Array("d", 2)
            super().__init__(*words, **how)

        async def _aggregate_with_group(self, *words: Any, **how: Any) -> Any:
            self.span[0] = time.time()
            try:
                return await super()._aggregate_with_group(*words, **how)
            finally:
                self.span[1] = time.time()

    dht = hivemind.DHT(initial_peers=[initial] if initial else None, start=True, **LOCAL)
    x = torch.zeros(count)
    averager = Timed(
        [x], dht, start=True, prefix="bench", target_group_size=ranks, min_group_size=ranks, **PEER
    )
    say(ready=[str(a) for a in dht.get_visible_maddrs()], version=hivemind.__version__)
    for step, line in enumerate(sys.stdin):
        with averager.get_tensors() as tensors:
            tensors[0].fill_(float(index + step))
        begin = begin_at(line)
        averager.step(timeout=60)
        end = time.time()
        with averager.get_tensors() as tensors:
            expected = (ranks - 1) / 2 + step
            exact = bool((tensors[0] == expected).all())
        say(step=end - begin, span=list(averager.span), exact=exact)
    averager.shutdown()
    dht.shutdown()


class Swarm:
    """The peers, each a process of this script in hivemind's interpreter."""

    def __init__(self, python: str, ranks: int, count: int) -> None:
        self.peers: list[subprocess.Popen[str]] = []
        self._start = lambda i, initial: subprocess.Popen(
            [python, SELF, "--peer", str(i), str(ranks), str(count), initial],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # with the daemons that it starts
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            self.peers.append(self._start(0, ""))
            first = hear(self.peers[0])
            self.version = first["version"]
            self.peers += [self._start(i, first["ready"][0]) for i in range(1, ranks)]
            for process in self.peers[1:]:
                hear(process)
        except BaseException:
            self.end()
            raise

    def round(self) -> dict[str, Any]:
        """One averaging: seconds of the step and of the allreduce alone."""
        moment = time.time() + 0.2
        for process in self.peers:
            tell(process, repr(moment))
        heard = [hear(process) for process in self.peers]
        spans = [h["span"] for h in heard]
        return {
            "step": max(h["step"] for h in heard),
            "allreduce": max(s[1] for s in spans) - min(s[0] for s in spans),
            "exact": all(h["exact"] for h in heard),
        }

    def end(self) -> None:
        """Ask them to end, then see to it, their daemons included."""
        for process in self.peers:
            if process.stdin is not None:
                process.stdin.close()
        for process in self.peers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# A rank of ours


def rank(count: int) -> None:
    """One rank: rank 0 obeys standard input and tells the others."""
    import numpy as np
    from mpi4py import MPI

    import partialcoll as pc

    comm = MPI.COMM_WORLD
    x, mean = np.zeros(count, np.float32), np.zeros(count, np.float32)

    def told() -> str:
        line = sys.stdin.readline() if comm.rank == 0 else ""
        request = comm.Ibarrier()
        while not request.Test():  # no core burnt while hivemind has its turn
            time.sleep(1e-3)
        return str(comm.bcast(line))

    with pc.GroupAllreduce_init(comm, x, mean, grid=(comm.size,)) as t:
        if comm.rank == 0:
            say(ready=True, version=pc.__version__)
        step = 0
        while line := told():
            x.fill(comm.rank + step)
            begin = begin_at(line)
            t.Start()
            rnd = t.Wait()
            seconds = time.time() - begin
            expected = np.float32((comm.size - 1) / 2 + step)
            exact = bool(rnd.exact and (mean == expected).all())
            spent = comm.allreduce(seconds, MPI.MAX)
            all_exact = comm.allreduce(exact, MPI.LAND)
            if comm.rank == 0:
                say(step=spent, exact=all_exact)
            step += 1


class Ranks:
    """Our job."""

    def __init__(self, ranks: int, count: int) -> None:
        from partialcoll import _mpiexec

        vendor = _mpiexec.flavour()
        words = _mpiexec.command(_mpiexec.find(vendor), vendor, ranks, None, None)
        self._job = subprocess.Popen(
            [*words, sys.executable, SELF, "--rank", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_mpiexec.environment(vendor),
        )
        self.version = hear(self._job)["version"]

    def round(self) -> dict[str, Any]:
        """One averaging: seconds."""
        tell(self._job, repr(time.time() + 0.2))
        return hear(self._job)

    def end(self) -> None:
        """There is nothing more to do."""
        if self._job.stdin is not None:
            self._job.stdin.close()
        try:
            self._job.wait(30)
        except subprocess.TimeoutExpired:
            self._job.terminate()
            self._job.wait()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says next; other output is passed over."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("@"):
            heard: dict[str, Any] = json.loads(line[1:])
            return heard
    raise SystemExit(f"bench/hivemind.py: a process has ended, status {process.wait()}")


def rows_of(
    samples: dict[tuple[str, str], list[float]], exact: dict[str, int], ranks: int, size: int
) -> list[dict[str, Any]]:
    """Medians; in how many rounds all had the average; how many times as long as our step."""
    ours = statistics.median(samples["partialcoll", "step"])
    return [
        {
            "method": method,
            "what": what,
            "ranks": ranks,
            "bytes": size,
            "seconds": statistics.median(times),
            "fastest": min(times),
            "slowest": max(times),
            "rounds": len(times),
            "exact_rounds": exact[method],
            "times_ours": statistics.median(times) / ours,
        }
        for (method, what), times in samples.items()
    ]


def compare(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """By turns; the first round of each is not counted."""
    count = options.size // 4
    swarm = Swarm(options.hivemind, options.n, count)
    try:
        ours = Ranks(options.n, count)
        try:
            samples: dict[tuple[str, str], list[float]] = {
                ("hivemind", "step"): [],
                ("hivemind", "allreduce"): [],
                ("partialcoll", "step"): [],
            }
            exact = {"hivemind": 0, "partialcoll": 0}
            for step in range(options.rounds + 1):
                for method, side in (("hivemind", swarm), ("partialcoll", ours)):
                    seen = side.round()  # type: ignore[attr-defined]
                    exact[method] += bool(step and seen["exact"])
                    for what in ("step", "allreduce"):
                        if step and what in seen:
                            samples[method, what].append(seen[what])
            rows = rows_of(samples, exact, options.n, options.size)
            return rows, {"hivemind": swarm.version, "partialcoll": ours.version}
        finally:
            ours.end()
    finally:
        swarm.end()


def main() -> int:
    """The command line; the peers and ranks that it starts come here as well."""
    words = sys.argv[1:]
    if words[:1] == ["--peer"]:
        peer(int(words[1]), int(words[2]), int(words[3]), words[4])
        return 0
    if words[:1] == ["--rank"]:
        rank(int(words[1]))
        return 0
    from partialcoll.cli import arguments

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hivemind", required=True, help="a Python interpreter that has hivemind")
    parser.add_argument("-n", type=arguments.positive_int, default=8, help="ranks (default 8)")
    parser.add_argument("--size", type=arguments.size, default=4 << 20, help="bytes (default 4M)")
    parser.add_argument(
        "--rounds", type=arguments.positive_int, default=7, help="of each (default 7)"
    )
    parser.add_argument("--json", metavar="F", help="the rows as JSON; - for standard output")
    options = parser.parse_args()
    if not os.access(options.hivemind, os.X_OK) or not Path(options.hivemind).is_file():
        parser.error(f"--hivemind: expected a Python interpreter, got {options.hivemind}")
    rows, versions = compare(options)
    from partialcoll import _report  # MPI: not before the job has been started

    document = _report.document("bench hivemind", options.n, rows)
    document["env"].update(hivemind=versions["hivemind"], times=PEER)
    _report.write(options.json, document, _report.table(rows, COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
