# SPDX-License-Identifier: Apache-2.0
"""Rendezvous of ranks started by MPI in torch.distributed, with no other setup.

Importing partialcoll.torch sets RANK, WORLD_SIZE and LOCAL_RANK where they are absent, as far as
the launcher's variables or an MPI that has begun tell them. It does not begin MPI. `init` and
`init_process_group` begin it, and set what was still unknown. The address of torch's store needs
communication, because its port has to be free: it is found when `init_process_group` looks for it.
Rank 0 opens the store on a port that the system chooses and tells the others by MPI, also when it
gives up; MASTER_ADDR and MASTER_PORT are set then. ``init_method="mpi://"`` asks for that; so does
torch's default, ``env://``, where the environment does not name both.

The former is a scheme of our own, which torch lets everybody register. For the default there is no
public way: `init_process_group` without an init_method goes to ``env://``, a scheme is registered
once, and its handler reads the environment, in which nothing can stand before rank 0 has a port.
So its handler is replaced, in `install`, by one that else calls it.

Ranks that meet in a store, here and for each new group, leave a note there and read those of the
others: so all of them see who is missing, and who has come with something else in mind. A store
answers everybody who can connect to it. So the names under which ranks meet contain a random secret
of the job, which rank 0 draws and tells the others by MPI, with the address.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Callable
from urllib.parse import parse_qsl, urlparse

import torch.distributed as dist

from .._core import launch, settings, waiting
from .._core.attendance import name_ranks
from .._core.failures import goes_on
from .._core.mpi import MPI, RECORD, check_rank, has_begun, is_child_of_rank
from ..collectives.agreement import ranks_by_text, sides
from ..errors import Error, MismatchError, StateError
from .ops.call import GroupTimeout

_TAG = 32741  # on COMM_WORLD, for the store's address alone
_NAP, _PATIENCE = 20e-3, 10.0  # seconds
_Store: Any = getattr(dist, "TCPStore", None)  # none where torch has no torch.distributed
_LOCAL_RANK = (
    *("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    *("PALS_LOCAL_RANKID", "SLURM_LOCALID"),
)
_told: list[Any] = []  # requests of what rank 0 has told, which MPI may still read
_counts = itertools.count()  # of what must not be the same twice in this process
_world = ""  # the identity of the world made last, the same on all its ranks
_secret = ""  # of the job, the same on all its ranks; empty until this rank knows it


# The environment


def _record() -> dict[str, str]:
    return dict(parse_qsl(os.environ.get(RECORD, ""), keep_blank_values=True))


def given(name: str) -> str | None:
    """A variable, unless this module, here or in the process that started this one, has set it."""
    value = os.environ.get(name)
    return None if not value or _record().get(name) == value else value


def set_absent(values: dict[str, str]) -> None:
    fresh = {name: value for name, value in values.items() if given(name) is None}
    os.environ.update(fresh)
    record = {**_record(), **fresh}
    os.environ[RECORD] = "&".join(f"{name}={value}" for name, value in record.items())


def mpi_is_there() -> bool:
    """Return whether MPI has begun and has not ended. Begins it, unless this process is a child of
    a rank, or mpi4py was told not to. Local."""
    if is_child_of_rank():
        return False
    launch.check_before_mpi()
    return MPI.Is_initialized() and not MPI.Is_finalized()


def set_environment() -> None:
    """Set RANK, WORLD_SIZE and LOCAL_RANK, where absent and known. Local; begins no MPI."""
    if is_child_of_rank():
        return
    told = (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) if has_begun() else launch.launched_rank()
    if told is None:
        return
    rank, size = told
    values = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    known = [os.environ[name] for name in _LOCAL_RANK if name in os.environ]
    if known or size == 1:
        values["LOCAL_RANK"] = known[0] if known else "0"
    set_absent(values)


# Meeting


def _naps() -> Iterator[float]:
    """Sleeps, the longer the later; yields the seconds that have passed."""
    begin, nap = time.monotonic(), 1e-4
    while True:
        yield time.monotonic() - begin
        time.sleep(nap)
        nap = min(2 * nap, _NAP)


def meet(
    store: Any, name: str, me: int, members: Sequence[int], note: Any, timeout: float, what: str
) -> tuple[dict[int, Any], Callable[[], None]]:
    """Leave a note in the store and wait for those of all members. Return the notes, and a function
    to call before all members raise an error. A name may be used again: the store counts how often
    this rank has. After `timeout` seconds all members that have come, and those that come later,
    get a GroupTimeout that names who is missing. what: for that message."""
    place = f"partialcoll/{_secret}/{name}"
    place = f"{place}/turn {store.add(f'{place}/{me}', 1)}"
    keys = [f"{place}/{rank}" for rank in members]
    verdict = f"{place}/verdict"  # the first rank that reaches one decides for all
    store.set(f"{place}/{me}", json.dumps(note))
    for passed in _naps():
        if store.check([verdict]):
            break
        waiting.look()
        if store.check(keys):
            store.compare_set(verdict, "", "go")
        elif passed >= timeout:
            missing = [rank for rank, key in zip(members, keys) if not store.check([key])]
            said = f"{name_ranks(missing)} of {_brief(members)} missing after {timeout:g} s"
            store.compare_set(verdict, "", said if missing else "go")
    said = store.get(verdict).decode()
    if said != "go":
        members = [rank for rank, key in zip(members, keys) if store.check([key])]
        _part(store, place, me, members)
        raise GroupTimeout(f"{what}: {said}")
    notes = {rank: json.loads(store.get(key)) for rank, key in zip(members, keys)}
    return notes, functools.partial(_part, store, place, me, members)


def _part(store: Any, place: str, me: int, members: Sequence[int]) -> None:
    """Wait a while, before an error, until the others have read what happened: the store may end
    with this process."""
    store.set(f"{place}/{me}/heard", "")
    others = [f"{place}/{rank}/heard" for rank in members]
    with contextlib.suppress(dist.DistError):  # who held it waits no longer
        for passed in _naps():
            if store.check(others) or passed >= _PATIENCE:
                return


def _brief(ranks: Sequence[int]) -> str:
    """Return ranks for messages: "[0, 1]", "[0-3, 8]"."""
    return f"[{name_ranks(ranks).split(' ', 1)[1]}]"


def _wrong_numbers(got: str) -> ValueError:
    expected = "expected MPI's numbers (leave them unset under mpiexec)"
    return ValueError(f"RANK and WORLD_SIZE: {expected}, got {got}")


# torch's store


def _complaint(url: str) -> str | None:
    """Return what is wrong with the variables of this rank."""
    query, world = dict(parse_qsl(urlparse(url).query)), MPI.COMM_WORLD
    claims = []
    for name, mine in (("RANK", world.rank), ("WORLD_SIZE", world.size)):
        value = query.get(name.lower()) or given(name)
        if value is not None and value != str(mine):
            claims.append(f"{name}={value} where MPI has {mine}")
    return "; ".join(claims) or None


def _tell(where: tuple[str, str, int] | None) -> None:
    """Tell the others the job's secret, and host, node and port of rank 0's store; None: none."""
    global _secret
    if not _secret and MPI.COMM_WORLD.size > 1:
        _secret = secrets.token_hex(16)
    for rank in range(1, MPI.COMM_WORLD.size):
        with contextlib.suppress(MPI.Exception):  # that rank has died, and will be missing
            _told.append(MPI.COMM_WORLD.isend((where, _secret), rank, _TAG))


def _hear(timeout: float, secret: bool = False) -> Any:
    """Return what rank 0 has told last, when there is a store; secret: when the secret is known."""
    global _secret
    where = None
    for passed in _naps():
        while message := MPI.COMM_WORLD.improbe(0, _TAG):
            where, _secret = message.recv()
        if where is not None or (secret and _secret):
            return where
        if passed >= timeout:
            raise GroupTimeout(f"init_process_group: rank 0 is missing after {timeout:g} s")


def _open_store(timeout: timedelta) -> tuple[Any, str, int]:
    """Rank 0's store, which the others hear of; or theirs. Its host and its port."""
    if MPI.COMM_WORLD.rank == 0:
        port, named = int(given("MASTER_PORT") or 0), given("MASTER_ADDR")
        store = _Store("localhost", port, is_master=True, wait_for_workers=False, timeout=timeout)
        _tell((named or socket.gethostname(), MPI.Get_processor_name(), store.port))
        return store, named or "localhost", store.port
    host, node, port = _hear(timeout.total_seconds())
    if given("MASTER_ADDR") is None and node == MPI.Get_processor_name():
        host = "localhost"
    return _Store(host, port, timeout=timeout), host, port


def _by_mpi(url: str, **options: Any) -> Iterator[Any]:
    """Handle torch's rendezvous by MPI. Collective; the same error on all ranks."""
    check_rank("init_process_group")
    world, timeout = MPI.COMM_WORLD, options.get("timeout") or dist.constants.default_pg_timeout
    store, host, port = _open_store(timeout)
    members, node = range(world.size), MPI.Get_processor_name()
    note, seconds = [_complaint(url), node], timeout.total_seconds()
    try:
        notes, part = meet(store, "world", world.rank, members, note, seconds, "init_process_group")
        wrong = [f"rank {rank}: {complaint}" for rank, (complaint, _) in notes.items() if complaint]
        if wrong:
            part()
            raise _wrong_numbers("; ".join(wrong))
    except BaseException:
        if world.rank == 0:
            _tell(None)
        raise
    values = {"RANK": world.rank, "WORLD_SIZE": world.size, "MASTER_ADDR": host}
    values["LOCAL_RANK"] = sum(notes[rank][1] == node for rank in range(world.rank))
    set_absent({name: str(value) for name, value in {**values, "MASTER_PORT": port}.items()})
    yield store, world.rank, world.size
    raise RuntimeError("init_process_group: expected to be asked for a store once")


def install() -> None:
    """Let torch find the store by MPI: for ``mpi://``, and ``env://`` where nothing names it."""
    module: Any = sys.modules["torch.distributed.rendezvous"]
    module.register_rendezvous_handler("mpi", _by_mpi)
    handlers: dict[str, Callable[..., Iterator[Any]]] = module._rendezvous_handlers
    usual = handlers["env"]

    def rendezvous(url: str, **options: Any) -> Iterator[Any]:
        told = given("MASTER_ADDR") is not None and given("MASTER_PORT") is not None
        if not told:
            check_rank("init_process_group")
        there = mpi_is_there()
        if there and not told:
            yield from _by_mpi(url, **options)
        complaint = _complaint(url) if there and MPI.COMM_WORLD.size > 1 else None
        if complaint is not None:
            settings.logger.warning("torch.distributed meets with %s", complaint)
        set_environment()
        yield from usual(url, **options)

    handlers["env"] = rendezvous


# Communicators


def _check(notes: dict[int, Any], is_world: bool, what: str) -> None:
    """Check the notes of a group's members; raise the same error on all of them."""
    ordered = sorted(notes.items())
    if is_world and len(notes) > 1 and all(note["mpi"] == [0, 1] for _, note in ordered):
        raise launch.apart(len(notes))
    wrong = [
        f"rank {rank} of {len(notes)} is MPI's rank {note['mpi'][0]} of {note['mpi'][1]}"
        for rank, note in ordered
        if is_world and note["mpi"] != [rank, len(notes)]
    ]
    if wrong:
        raise _wrong_numbers("; ".join(wrong[:4]) + ("; …" if len(wrong) > 4 else ""))
    for topic in ("who its members are", "its options"):
        found = sides((rank, note[topic]) for rank, note in ordered)
        if len(found) > 1:
            raise MismatchError(f"{what}: the ranks differ in {topic}: {ranks_by_text(found)}")
    short = [rank for rank, note in ordered if not note["threads"]]
    if short:
        raise StateError(
            f"the backend needs MPI_THREAD_MULTIPLE; MPI was initialized with less on "
            f"{name_ranks(short)}"
        )


def gather_members(wanted: Any, options: str) -> tuple[str, MPI.Intracomm]:
    """Return a name that no other group has or had, and a communicator of a group's ranks. wanted:
    as torch describes it to a backend; the world has no members' numbers. options: are compared.
    Collective; on all members that have come GroupTimeout if others have not, else as `_check`."""
    global _world
    check_rank("init_process_group")
    if not mpi_is_there():
        raise StateError("the backend needs MPI: initialized (mpi4py.MPI.Init) and not finalized")
    world = MPI.COMM_WORLD
    launch.check_launcher()
    name, ranks, size = wanted.group_id, list(wanted.global_ranks_in_group), wanted.group_size
    store, timeout = wanted.store, wanted.timeout.total_seconds()
    members = ranks or list(range(size))
    me, first = members[wanted.group_rank], members[0]
    what = f"new_group, group {name}" if ranks else "init_process_group"
    place = f"{_world} group {name}" if ranks else f"world {name}"
    note = {
        "mpi": [world.rank, world.size],
        "number": next(_counts),
        "who its members are": _brief(members),
        "its options": options,
        "threads": MPI.Query_thread() >= MPI.THREAD_MULTIPLE,
    }
    # A store of the user's own; ranks that MPI has not started together are refused below.
    if not ranks and not _secret and 1 < size == world.size:
        _hear(timeout, secret=True) if world.rank else _tell(None)
    notes, part = meet(store, place, me, members, note, timeout, what)
    try:
        _check(notes, not ranks, what)
    except (ValueError, Error):
        if not ranks:  # else the world's store goes on
            part()
        raise
    group = world.group.Incl(members)
    identity = f"{name}/{first}/{notes[first]['number']}"  # the first of them counts for all
    if goes_on():  # also of a world in which a rank has died, that is none of them
        comm = MPI.Intracomm.Create_from_group(group, identity)
    else:
        comm = world.Create_group(group, _TAG)
    group.Free()
    if not ranks:
        _world = identity
    return identity, comm
