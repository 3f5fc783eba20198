# SPDX-License-Identifier: Apache-2.0
"""Experiments that are no commands of ``partialcoll``: python bench/run.py EXPERIMENT [options]

--help lists them, EXPERIMENT --help says what one does. An experiment starts its own job, as
``partialcoll bench`` does; a series runs many and keeps their rows in bench/results.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from partialcoll.tools import cli

sys.path.insert(0, str(Path(__file__).resolve().parent))  # wherever this was started from

EXPERIMENTS = {
    "a2cid2": "paper.a2cid2",
    "backend": "peers.backend",
    "busy_neighbors": "core.busy_neighbors",
    "calltrace": "core.calltrace",
    "calltrace_python": "core.calltrace_python",
    "compare": "core.compare",
    "ddp_hook": "peers.ddp",
    "device": "device.train",
    "exposed": "paper.exposed",
    "faults": "core.faults",
    "faults_gossip": "core.faults_gossip",
    "gpu": "peers.gpu",
    "hivemind": "peers.hivemind_average",
    "hosts": "lib.hosts",
    "interposer": "peers.interposer",
    "kernels": "core.kernels",
    "overlap": "peers.overlap",
    "peers": "peers.allreduce",
    "programs": "peers.programs",
    "ready": "core.ready",
    "series": "paper.series",
    "shortfall": "paper.a2cid2:shortfall",
    "suites": "peers.suites",
    "uneven": "paper.uneven",
}


@click.group(cls=cli.Modules, modules=EXPERIMENTS, no_args_is_help=False)
def experiments() -> None:
    """Experiments: this library beside others, what the papers measured, single parts."""


if __name__ == "__main__":
    sys.exit(cli.run(experiments, "bench/run.py", sys.argv[1:]))
