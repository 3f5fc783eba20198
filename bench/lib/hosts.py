# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: runs a command as an MPI job whose ranks stand on emulated hosts.

    python bench/run.py hosts HOSTS [--rate 1gbit[,1gbit…]] [--per-host 1] -- COMMAND…

A host is a network namespace on a bridge; what it sends is limited to the rate, one for all or one
for each host (a token bucket, so bandwidth is emulated, latency is not). Needs root and iproute2,
and takes the mpiexec beside this interpreter. Everything it makes is gone when it ends; names carry
its process id, so several may run at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from partialcoll import Error
from partialcoll.tools import launcher
from partialcoll.tools.cli import options, values

from .job import count, words

_MADE = itertools.count()
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float:
    found = re.fullmatch(r"([\d.]+)(kbit|mbit|gbit)", rate)
    if found is None or not float(found[1]) > 0:
        raise ValueError(f"expected rates such as 100mbit, got {rate!r}")
    return float(found[1]) * _UNITS[found[2]]


RATE = values.Parsed(lambda text: text if bits_per_second(text) else "")


def _ip(words: str, quiet: bool = False) -> str:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    if done.returncode and not quiet:
        raise Error(f"ip {words}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """Make the hosts on entry, remove them on exit. Subnet: 10.x.y.0/24, x and y of this pid."""

    def __init__(self, count: int, rates: Sequence[str]) -> None:
        self.count = count
        self.rates = list(rates) * count if len(rates) == 1 else list(rates)
        # Removed interfaces vanish with a delay, so the next object uses other names.
        self.tag = f"{os.getpid() % 65536:04x}{next(_MADE) % 16:x}"
        self.net = f"10.{64 + os.getpid() // 256 % 128}.{os.getpid() % 256}"
        self.bridge = f"pcb{self.tag}"

    def __enter__(self) -> Hosts:
        try:
            _ip(f"link add {self.bridge} type bridge")
            _ip(f"addr add {self.net}.254/24 dev {self.bridge}")
            _ip(f"link set {self.bridge} up")
            for i, rate in enumerate(self.rates, 1):
                host, outer = f"pc{self.tag}h{i}", f"pcv{self.tag}n{i}"
                _ip(f"netns add {host}")
                _ip(f"link add {outer} type veth peer name eth0 netns {host}")
                _ip(f"link set {outer} master {self.bridge} up")
                _ip(f"-n {host} addr add {self.net}.{i}/24 dev eth0")
                _ip(f"-n {host} link set eth0 up")
                _ip(f"-n {host} link set lo up")
                bucket = f"tbf rate {rate} burst 256kb latency 100ms"
                _ip(f"netns exec {host} tc qdisc replace dev eth0 root {bucket}")
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """End what still runs on the hosts, then the hosts."""
        for i in range(1, self.count + 1):
            host = f"pc{self.tag}h{i}"
            for pid in _ip(f"netns pids {host}", quiet=True).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            # Its kernel may keep the host for a while, for connections that end: not its link.
            _ip(f"link del pcv{self.tag}n{i}", quiet=True)
            _ip(f"netns del {host}", quiet=True)
        _ip(f"link del {self.bridge}", quiet=True)

    def drop(self, i: int) -> None:
        """Cut host i (from 1 on) off, as if it had vanished."""
        _ip(f"link set pcv{self.tag}n{i} down")


# The hosts share a kernel, and Open MPI's collectives for shared memory would take them for one.
_NOT_SHARED = "^han,sm,xhc,acoll,ucc,hcoll,adapt"


@contextlib.contextmanager
def started(
    hosts: Hosts, per_host: int, command: Sequence[str], **popen: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start the command on all ranks; yield the launcher's process. `popen`: for Popen."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **popen.pop("env", {})}
    env["UCX_TLS"] = "tcp,self"  # no shared memory between the hosts
    env.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    with tempfile.TemporaryDirectory() as folder:
        shell = Path(folder) / "remote-shell"  # the launcher calls it like ssh
        shell.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            "host=$1; shift\n"
            f'exec ip netns exec "pc{hosts.tag}h${{host##*.}}" sh -c "$*"\n'
        )
        shell.chmod(0o700)
        addresses = [f"{hosts.net}.{i}" for i in range(1, hosts.count + 1)]
        if launcher.flavor() == "openmpi":
            places = ",".join(f"{address}:{per_host}" for address in addresses)
            how = (
                f"--prtemca plm_ssh_agent {shell} --prtemca prte_if_include {hosts.net}.0/24 "
                f"--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth0 "
                f"--mca coll {_NOT_SHARED} --with-ft ulfm --bind-to none --host {places}"
            )
        else:
            how = (
                f"-launcher ssh -launcher-exec {shell} -hosts {','.join(addresses)} "
                f"-localhost {hosts.net}.254 -ppn {per_host}"
            )
        words = [str(Path(sys.executable).parent / "mpiexec"), *how.split()]
        words += ["-n", str(per_host * hosts.count), *command]
        with subprocess.Popen(words, env=env, text=True, **popen) as job:
            yield job


def run(hosts: Hosts, per_host: int, command: list[str]) -> int:
    with started(hosts, per_host, command) as job:
        return job.wait()


def on_hosts(count: int, rates: Sequence[str]) -> int:
    """Run this experiment on emulated hosts of one rank each; return its exit status."""
    with Hosts(count, rates) as hosts:
        return run(hosts, 1, words())


@click.command("hosts", help=__doc__, short_help="a command on emulated hosts")
@click.argument("hosts", type=click.IntRange(1, 200))
@options.option("--rate", values.ListOf(RATE), "1gbit", "one for all or one for each host")
@count("--per-host", 1, "ranks")
@click.argument("program", nargs=-1, required=True)
def command(hosts: int, rate: list[str], per_host: int, program: tuple[str, ...]) -> int:
    if len(rate) not in (1, hosts):
        raise click.UsageError(f"--rate: expected 1 or {hosts} rates, got {len(rate)}")
    with Hosts(hosts, rate) as made:
        return run(made, per_host, list(program))
