# SPDX-License-Identifier: Apache-2.0
"""The arguments of an allreduce, checked, as the core wants them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from .._core import buffers, checks, settings
from .._core.buffers import Buffer, check_apart, check_match, describe, is_list
from .._core.communicator import failure_code, progress_code
from .._core.device import DeviceBuffer, as_any_buffers, on_device, one_device
from .._core.ffi import answer, check, core, ffi, lib
from .._core.mpi import MPI
from .._core.pure import codes
from ..policy import Policy, as_policy

_DELIVER = codes("DELIVER", "one", "all")
_LATE = codes("LATE", "carry", "latest", "drop")


@dataclass
class Arguments:
    """The arguments of one handle on this rank, see `Allreduce_init`: checked, and in the core's
    form."""

    sendbuf: Any
    recvbuf: Any
    op: Any
    quorum: Policy | str = "full"
    deliver: str = "one"
    history: int = 8
    late: str | None = None
    missed: str = "sum"
    progress: str | None = None
    algorithm: str | None = None
    domain: str | None = None
    seed: int = 0
    name: str | None = None
    like: Any = None
    on_failure: str = "raise"

    def __post_init__(self) -> None:
        # With "all" a call may deliver several rounds: they are added up in a buffer.
        self.received = self.recvbuf is not None or self.deliver != "one"
        self._take_buffers(self.sendbuf, self.recvbuf)
        codes = self._take_ops()
        self.described = describe(self.recv, self.ops, codes)
        self.options = ffi.new("pcoll_options *")
        self.policy = as_policy(self.quorum)
        self._choose_rounds(sums=all(code == lib.PCOLL_SUM for code in codes))
        self._choose_ways()
        if self.name is not None:
            data = checks.instance("name", self.name, str, "a text or None").encode(
                errors="surrogatepass"
            )
            digest = hashlib.blake2b(data, digest_size=8).digest()
            self.options.name = int.from_bytes(digest, "little")

    def _take_buffers(self, sendbuf: Any, recvbuf: Any) -> None:
        in_place = sendbuf is MPI.IN_PLACE
        self.outlined: list[DeviceBuffer] = []  # by `like`, on a device
        self.send: list[Buffer] | None = None
        if not in_place and sendbuf is not None:
            self.send = as_any_buffers("sendbuf", sendbuf, writable=False)
        if self.like is not None and not (sendbuf is None and recvbuf is None):
            raise ValueError("like: expected sendbuf=None and recvbuf=None with it, got a buffer")
        if recvbuf is not None:
            self.recv = as_any_buffers("recvbuf", recvbuf, writable=True)
            if in_place:
                check_apart("recvbuf", self.recv)
                self.send = self.recv
            elif self.send is not None:
                check_match(self.send, self.recv)
        elif in_place:
            raise ValueError("recvbuf: expected a buffer with sendbuf=MPI.IN_PLACE, got None")
        else:
            examples = self.send
            if examples is None:
                if self.like is None:
                    raise ValueError(
                        "recvbuf: expected a buffer, or one to go by in like=, got None with "
                        "sendbuf=None"
                    )
                examples = as_any_buffers("like", self.like, writable=False, used=False)
                self.outlined = on_device(examples)
            self.recv = [one.like() if self.received else one.outline() for one in examples]
        given = sendbuf if self.send is not None and not in_place else recvbuf
        self.single = not is_list(self.like if given is None else given)

    def _take_ops(self) -> list[int]:
        count, op = len(self.recv), self.op
        if not isinstance(op, (list, tuple)):
            op = [MPI.SUM if op is None else op] * count
        elif len(op) != count:
            raise ValueError(
                f"op: expected one, or one for each of the {count} buffers, got {len(op)}"
            )
        self.ops = list(op)
        codes = [buffers.op_code(one) for one in self.ops]
        for one, code, buffer in zip(self.ops, codes, self.recv):
            buffers.check_op(one, code, buffer)
        self.device = one_device([*(self.send or []), *self.recv, *self.outlined])
        if self.device is not None and not self.outlined and self.send is None:
            raise ValueError("sendbuf: expected an array, as recvbuf is on a device, got None")
        self.sums = [buffers.can_add(code, buffer) for code, buffer in zip(codes, self.recv)]
        return codes

    def _choose_rounds(self, sums: bool) -> None:
        options, late = self.options, self.late
        checks.one_of("late", late, (None, *_LATE))
        late = late or ("carry" if sums else "latest")
        if late == "carry" and not sums:
            raise ValueError(
                'late: "carry" adds deposits up, so it needs op=MPI.SUM; use "latest" or "drop"'
            )
        checks.one_of("missed", self.missed, ("sum", "latest"))
        policy = ffi.addressof(options, "policy")
        check(lib.pcoll_policy_parse(str(self.policy).encode(), policy))
        options.deliver = checks.code("deliver", self.deliver, _DELIVER)
        options.late = _LATE[late]
        options.history = checks.integer(
            "history", self.history, 1, 2**20, what="a number of rounds"
        )

    def _choose_ways(self) -> None:
        options = self.options
        algorithm = settings.choice(
            "algorithm", self.algorithm, "PARTIALCOLL_ALGORITHM", "auto", settings.ALGORITHMS
        )
        options.algorithm = settings.ALGORITHMS.index(algorithm)
        source, text = settings.given("domain", self.domain, "PARTIALCOLL_DOMAIN", "node")
        checks.text(source, text, what="a text such as 'node'")
        places = (ffi.addressof(options, name) for name in ("domain", "domain_ranks"))
        if lib.pcoll_domain_parse(text.encode(), *places):
            raise ValueError(core.last_error().replace("domain", source, 1))
        options.progress = progress_code(self.progress)
        options.owned_send = self.send is None or self.device is not None
        options.device = 0 if self.device is None else self.device + 1
        options.on_failure = failure_code(self.on_failure)
        options.seed = checks.integer("seed", self.seed) % 2**64

    @property
    def for_core(self) -> tuple[Any, int, Any]:
        return self.described, len(self.recv), self.options

    def memory(self, ranks: int) -> int:
        """Bytes that a handle with these arguments holds on this rank."""
        return int(answer("uint64_t", lib.pcoll_memory_estimate, ranks, *self.for_core))
