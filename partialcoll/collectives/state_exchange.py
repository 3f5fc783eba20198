# SPDX-License-Identifier: Apache-2.0
"""The state of an up-to-date rank for one that joins, comes back, or has fallen too far behind.

A rank that needs the state asks a peer; the peer looks for questions at each step boundary
(`serve`), sends a copy of its state and goes on at once. Everything runs on a communicator of its
own. What is sent, and the rules that leave nothing behind:

- asker to peer, tag ``_ASK``, three int64: ASK, WITHDRAW or LEAVES, the number of the question, the
  least round that will do. Sent synchronously: when the request is complete, the peer has taken it.
- peer to asker, tag ``_ANSWER``: a header of int64, NONE or STATE, the number of the question, the
  round, the size in bytes of each buffer; after STATE the buffers (see `pack`), one after the
  other, in pieces whose size follows from the total. All pieces are sent without waiting.

Every ASK has exactly one answer: STATE at a boundary of at least that round, or NONE (the peer
itself is asking, has been told WITHDRAW before it answered, is about to free). So an asker knows
what it is owed. It asks one peer, another as well when nothing has come for some time, and takes
the first STATE of this question that is complete. What else comes is received and thrown away, by
the calls that follow: `serve`, `ask`, `Free`. `Free` answers and receives what is open and then
enters a barrier, so that behind the barrier nothing is under way: who still has a question open has
not entered.

A rank that dies has no answer to give and needs none: what was under way with it is dropped, and
everything goes on among those who live. So the barrier of `Free` needs nobody else: each rank sends
LEAVES with ``_ASK`` to all others, and waits until all others have sent it, or have died.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import checks, settings
from .._core.attendance import attending
from .._core.failures import Peers, all_say, duplicate, goes_on
from .._core.ffi import lib
from .._core.mpi import MPI
from .._core.object import CollectiveObject
from .._core.waiting import naps
from ..errors import MismatchError

# A state as memory that can be sent. Small parts are pickled, large arrays stay as they are:
# protocol 5 of pickle (PEP 574) takes them out. The first buffer is the pickle, the others are the
# arrays in its order. They travel in pieces, whose size both sides work out from the total; no
# piece is more than an int can count.

Bytes = NDArray[np.uint8]
# Bytes. Less goes into the pickle: a message of its own would cost more than the copy.
_LARGE = 4096
_LEAST_PIECE, _MOST_PIECES = 4 << 20, 1024
_POSTED = 8  # pieces that are received at a time


def pack(state: Any) -> list[Bytes]:
    """Return a copy of a state, to be sent. Raises what pickle raises."""
    arrays: list[Bytes] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < _LARGE:
            return True
        arrays.append(np.frombuffer(memory, np.uint8).copy())
        return False

    pickled = pickle.dumps(state, protocol=5, buffer_callback=is_small)
    return [np.frombuffer(pickled, np.uint8), *arrays]


def unpack(buffers: Sequence[Bytes]) -> Any:
    """Return the state, whose large arrays lie in these very buffers."""
    pickled, *arrays = buffers
    return pickle.loads(pickled.data, buffers=arrays)


def _cuts(sizes: Sequence[int]) -> Iterator[tuple[int, slice]]:
    piece = max(_LEAST_PIECE, -(-sum(sizes) // _MOST_PIECES))
    for i, size in enumerate(sizes):
        for begin in range(0, size, piece):
            yield i, slice(begin, min(begin + piece, size))


class Outgoing:
    """Sends under way; they keep the memory that they need."""

    def __init__(
        self, comm: MPI.Intracomm, peer: int, tag: int, words: list[int], buffers: Any = ()
    ) -> None:
        """Send int64, then buffers (`Bytes`). A question is over when the peer has received it."""
        header = np.array(words, np.int64)
        self._memory = header, buffers
        send = comm.Issend if tag == _ASK else comm.Isend
        self._requests = deque([send(header, peer, tag)])
        for i, part in _cuts([buffer.size for buffer in buffers]):
            self._requests.append(comm.Isend([buffers[i][part], MPI.BYTE], peer, tag))

    def is_over(self) -> bool:
        """Return whether MPI no longer needs the memory. Raises if the peer has died."""
        while self._requests and self._requests[0].Test():
            self._requests.popleft()
        return not self._requests


class Incoming:
    """Buffers on their way here, behind a header that has told their sizes: into memory of their
    own while wanted, else thrown away."""

    def __init__(
        self, comm: MPI.Intracomm, peer: int, tag: int, sizes: Sequence[int], wanted: bool
    ) -> None:
        self.peer, self.wanted = peer, wanted
        self.nbytes = sum(sizes)
        self.buffers = [np.empty(size, np.uint8) for size in sizes] if wanted else []
        self._comm, self._tag, self._left = comm, tag, _cuts(sizes)
        self._posted: deque[MPI.Request] = deque()
        self._post()

    def _post(self) -> None:  # unwanted pieces one at a time, which takes little memory
        most = _POSTED if self.wanted else 1
        for i, part in islice(self._left, max(most - len(self._posted), 0)):
            size = part.stop - part.start
            memory = self.buffers[i][part] if self.wanted else np.empty(size, np.uint8)
            self._posted.append(self._comm.Irecv([memory, MPI.BYTE], self.peer, self._tag))

    def advance(self) -> bool:
        came = False
        while self._posted and self._posted[0].Test():
            self._posted.popleft()
            self._post()
            came = True
        return came

    def is_over(self) -> bool:
        return not self._posted


_AGAIN = 10e-3  # seconds until a peer that had nothing is asked again
_NAP = 1e-3  # seconds


@dataclass
class Question:
    """A question of this rank: the ranks it asks next, and those that have not answered."""

    number: int
    order: deque[int]
    patience: float
    progress: float  # when something of a state came last, or it was asked
    open: set[int] = field(default_factory=set)  # asked, and nothing has come
    coming: set[int] = field(default_factory=set)  # their states are on the way
    asked: dict[int, float] = field(default_factory=dict)  # all, and when last
    next_at: float = 0.0

    def next_peer(self, now: float) -> int | None:
        """Return the next peer to ask now: it owes nothing, and has not just been asked."""
        if now < self.next_at:
            return None
        for _ in range(len(self.order)):
            peer = self.order[0]
            self.order.rotate(-1)
            free = peer not in self.open and peer not in self.coming
            if free and now >= self.asked.get(peer, -_AGAIN) + _AGAIN:
                self.open.add(peer)
                self.asked[peer] = now
                self.next_at = now + self.patience
                return peer
        return None

    def answered(self, peer: int, has_state: bool, now: float) -> None:
        self.open.discard(peer)
        self.next_at = now  # if it has nothing, the next one at once; else that can wait
        if has_state:
            self.coming.add(peer)
            self.comes(now)

    def lost(self, peer: int, now: float) -> None:
        if peer in self.order:
            self.order.remove(peer)
        self.open.discard(peer)
        self.coming.discard(peer)
        self.next_at = now

    def comes(self, now: float) -> None:
        self.progress = now
        self.next_at = now + self.patience

    def complaint(self, rank: int, limit: float) -> str:
        if not self.order:
            return f"rank {rank} asked for a state, and all ranks that it could ask have died"
        asked = ", ".join(map(str, self.asked))
        silent = ", ".join(map(str, sorted(self.open))) or "none of them"
        return (
            f"rank {rank} asked for a state and nothing came for {limit:g} s: asked ranks {asked}; "
            f"without an answer: {silent}. Who has one must call serve at its step boundaries"
        )


def check_peers(peers: Iterable[int] | None, rank: int, size: int) -> list[int]:
    """Return each once, in their order; for None all others, beginning with the next one."""
    if peers is None:
        peers = [(rank + i) % size for i in range(1, size)]
    given = checks.several("peers", peers, what="ranks or None")
    order = list(dict.fromkeys(checks.integer("peers", peer, what="ranks") for peer in given))
    wrong = [peer for peer in order if not 0 <= peer < size or peer == rank]
    if wrong:
        raise ValueError(
            f"peers: expected ranks from 0 to {size - 1} other than {rank}, the own one, "
            f"got {wrong[0]}"
        )
    if not order:
        raise ValueError("peers: expected at least one rank, got none")
    return order


_ASK, _ANSWER = 1, 2  # tags
_QUESTION, _WITHDRAW, _LEAVES = 1, 2, 3  # kinds of _ASK
_NONE, _STATE = 1, 2  # kinds of _ANSWER


@dataclass
class ExchangeStats:
    """Counts of a `StateExchange` on this rank.

    ``asked``: requests to peers. ``answered``, ``refused``: requests of peers answered with and
    without a state. ``drained``: states that arrived too late. ``bytes_sent``, ``bytes_received``.
    """

    asked: int = 0
    answered: int = 0
    refused: int = 0
    drained: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class StateExchange(CollectiveObject):
    """Hands the state of a rank to one that asks for it. Collective.

    It has the ranks of `comm` (mpi4py.MPI.Intracomm), which is dup'ed. `timeout`: seconds that
    `ask` goes on while nothing of a state comes; default: PARTIALCOLL_TIMEOUT, 10 s. `patience`:
    seconds after which `ask` tries one more peer, more than a step takes; default: a quarter of the
    timeout.

    Those who take part call `serve` at every step boundary, and `ask` when they need a state
    themselves; nothing but making and freeing one is collective. To free it, which the end of a
    ``with`` statement does, answers questions of others with "nothing", and receives states that
    are no longer wanted. One thread at a time. Where the job goes on when a rank dies, so does the
    exchange.

    Raises ValueError or TypeError for times that are not above 0, MismatchError on the other ranks.
    """

    _noun = "state exchange"
    _comm: MPI.Intracomm | None = None  # its own; None: freed

    def __init__(
        self, comm: MPI.Intracomm, *, timeout: float | None = None, patience: float | None = None
    ) -> None:
        self._enter(comm)
        error: Exception | None = None
        try:
            self._timeout = checks.seconds("timeout", timeout, settings.base_timeout())
            self._patience = checks.seconds("patience", patience, self._timeout / 4)
        except (TypeError, ValueError) as caught:  # the others are told, else they would wait
            error = caught
        with attending("StateExchange", self._members):
            own = duplicate(comm)
            if goes_on():
                who = "" if all_say(own, error is None) else "a rank"
            else:
                bad = [rank for rank, wrong in enumerate(own.allgather(error is not None)) if wrong]
                who = f"rank {bad[0]}" if bad else ""
        if who:
            own.Free()
            raise error or MismatchError(f"timeout or patience: refused on {who}")
        self._comm = own
        self._number = 0
        self._stats = ExchangeStats()
        self._questions: dict[int, tuple[int, int]] = {}  # of peers: number, least round
        self._owed: Counter[int] = Counter()  # answers, by peer
        self._incoming: dict[int, tuple[int, int, Incoming]] = {}  # number, round, it
        self._outgoing: list[Outgoing] = []
        self._busy = False  # is there anything in these four?
        self._peers, self._forgotten = Peers(own), 0  # dead peers that were forgotten
        self._entered = False  # the barrier of Free
        self._gone: set[int] = set()  # peers that have sent LEAVES

    def serve(self, round: int, state: Any) -> bool:
        """Answer a peer's request for the state, at a step boundary. Never waits. Local. Return
        True while a transfer is under way; the next calls continue it.

        `round`, at least 0, is the round of the state, and is sent with it. `state` is an object
        that pickle takes (large numpy arrays, and other out-of-band buffers of pickle, are sent as
        raw memory), or a callable without arguments that is called only on a request. It is
        copied before this returns, and kept until it has been sent: MPI sends it during calls of
        `serve`, or of any other code on this rank that drives MPI, as an agent. Raises the errors
        of pickle or of the callable; the peer that asked then gets no state.
        """
        if not self._busy and not self._probe(MPI.ANY_SOURCE, _ASK):
            return False
        checks.integer("round", round, 0, 2**63 - 1)
        self._advance()
        ready = [peer for peer, (_, least) in self._questions.items() if least <= round]
        if ready:
            try:
                buffers = pack(state() if callable(state) else state)
            except BaseException:
                self._refuse(ready)
                raise
            sizes = [buffer.size for buffer in buffers]
            for peer in ready:
                number, _ = self._questions.pop(peer)
                header = [_STATE, number, round, *sizes]
                self._send(peer, _ANSWER, header, buffers)
                self._stats.answered += 1
                self._stats.bytes_sent += sum(sizes)
        self._note()
        return self._busy

    def _refuse(self, peers: Iterable[int]) -> None:
        for peer in tuple(peers):
            number, _ = self._questions.pop(peer)
            self._send(peer, _ANSWER, [_NONE, number, 0])
            self._stats.refused += 1

    def _send(self, *arguments: Any) -> None:
        sent = self._peers.call(partial(Outgoing, self._own(), *arguments), None)
        if sent is not None:
            self._outgoing.append(sent)

    # The one who needs a state

    def ask(
        self,
        peers: Iterable[int] | None = None,
        *,
        least_round: int = 0,
        timeout: float | None = None,
    ) -> tuple[int, Any]:
        """Return the round and the state of one of the peers. Local: no other rank waits.

        `peers` are the ranks to ask, in this order: the next one when patience ends or a peer has
        no state; default: all others, beginning with the next rank. A peer answers at its first
        boundary of round `least_round` or a later one. `timeout`: seconds; default: that of the
        exchange. Requests of other ranks are refused meanwhile. This rank owns the arrays in the
        state. Raises TimeoutError, naming the peers that were asked, if no part of a state has
        arrived for `timeout` seconds; the next call asks again.
        """
        self._own()
        order = check_peers(peers, self._rank, self._size)
        checks.integer("least_round", least_round, 0, 2**63 - 1)
        limit = checks.seconds("timeout", timeout, self._timeout)
        self._number += 1
        order = [peer for peer in order if peer not in self._peers.dead]
        order.sort(key=lambda peer: self._owed[peer])  # who owes from before comes last
        question = Question(self._number, deque(order), self._patience, time.monotonic())
        pause = naps()
        try:
            while True:
                peer = question.next_peer(time.monotonic())
                if peer is not None:
                    self._control(peer, _QUESTION, least_round)
                    self._owed[peer] += 1
                    self._stats.asked += 1
                if self._advance(question):
                    pause = naps()
                self._refuse(self._questions)
                found = self._complete()
                if found is not None:
                    return found
                if not question.order or time.monotonic() - question.progress >= limit:
                    raise TimeoutError(question.complaint(self._rank, limit))
                time.sleep(next(pause))
        finally:  # withdraw the requests that are still open
            for peer in question.open:
                self._control(peer, _WITHDRAW)
            for _, _, incoming in self._incoming.values():
                # The requests keep what is being received into.
                incoming.wanted, incoming.buffers = False, []
            self._note()

    def _control(self, peer: int, kind: int, least: int = 0) -> None:
        self._send(peer, _ASK, [kind, self._number, least])

    def _complete(self) -> tuple[int, Any] | None:
        for peer, (_, round, incoming) in self._incoming.items():
            if incoming.wanted and incoming.is_over():
                self._end(peer)
                return round, unpack(incoming.buffers)
        return None

    # Both: what has come

    def _advance(self, question: Question | None = None) -> bool:
        """Take in what has come and let go what has left; return whether anything has come."""
        self._look()
        call = self._peers.call
        self._outgoing = [sent for sent in self._outgoing if not call(sent.is_over, True)]
        came = self._look_for_answers(question)
        for peer, (number, _, incoming) in tuple(self._incoming.items()):
            if call(incoming.advance, False):
                came = True
                if question is not None and number == question.number:
                    question.comes(time.monotonic())
            if incoming.is_over() and not incoming.wanted:
                self._end(peer)
                self._stats.drained += 1
        if len(self._peers.dead) > self._forgotten:
            self._forgotten = len(self._peers.dead)
            for peer in self._peers.dead:
                self._questions.pop(peer, None)
                self._owed.pop(peer, None)
                self._incoming.pop(peer, None)
                if question is not None:
                    question.lost(peer, time.monotonic())
        return came

    def _probe(self, source: int, tag: int, status: MPI.Status | None = None) -> bool:
        return self._peers.call(partial(self._own().Iprobe, source, tag, status), False)

    def _receive(self, size: int, peer: int, tag: int) -> list[int]:
        words = np.zeros(size, np.int64)
        receive: Any = partial(self._own().Recv, words, peer, tag)
        return words.tolist() if self._peers.call(receive, False) is None else []

    def _look(self) -> None:
        """Note what peers ask, in order; answer what is withdrawn before it was answered."""
        status = MPI.Status()
        while self._probe(MPI.ANY_SOURCE, _ASK, status):
            peer = status.Get_source()
            words = self._receive(3, peer, _ASK)
            if not words:
                continue
            kind, number, least = words
            if kind == _QUESTION:
                self._questions[peer] = (number, least)
            elif kind == _LEAVES:
                self._gone.add(peer)
            elif peer in self._questions:
                self._refuse([peer])

    def _look_for_answers(self, question: Question | None) -> bool:
        status, came = MPI.Status(), False
        for peer in [peer for peer, owed in self._owed.items() if owed]:
            while (
                peer not in self._incoming
                and self._owed[peer]
                and self._probe(peer, _ANSWER, status)
            ):
                words = self._receive(status.Get_count(MPI.INT64_T), peer, _ANSWER)
                if not words:
                    break
                self._take(peer, words, question)
                came = True
        return came

    def _take(self, peer: int, header: Sequence[int], question: Question | None) -> None:
        kind, number, round, *sizes = header
        wanted = question is not None and number == question.number
        if kind == _STATE:
            begin = partial(Incoming, self._own(), peer, _ANSWER, sizes, wanted)
            incoming = self._peers.call(begin, None)
            if incoming is None:
                return
            self._incoming[peer] = (number, round, incoming)
        else:
            self._owed[peer] -= 1
        if question is not None and wanted:
            question.answered(peer, kind == _STATE, time.monotonic())

    def _end(self, peer: int) -> None:
        self._owed[peer] -= 1
        _, _, incoming = self._incoming.pop(peer)
        self._stats.bytes_received += incoming.nbytes

    def _note(self) -> None:
        under_way = self._questions or self._outgoing or self._incoming
        self._busy = bool(under_way or any(self._owed.values()))

    @property
    def stats(self) -> ExchangeStats:
        """A copy of the counts."""
        return ExchangeStats(**vars(self._stats))

    def _is_freed(self) -> bool:
        return self._comm is None

    def _try_to_free(self, microseconds: int) -> int:
        came = self._advance()
        self._refuse(self._questions)
        self._note()
        if not self._entered and not self._busy:
            self._entered = True
            for peer in {*range(self._size)} - {self._rank}:
                self._control(peer, _LEAVES)
            self._note()
        all_have = len(self._gone | self._peers.dead | {self._rank}) == self._size
        if self._entered and all_have and not self._busy:
            return 0
        time.sleep(0 if came else min(microseconds * 1e-6, _NAP))
        return int(lib.PCOLL_EAGAIN)

    def _after_free(self) -> None:
        comm, self._comm = self._own(), None
        self._busy = True  # who serves from now on gets StateError
        comm.Free()

    def _own(self) -> MPI.Intracomm:
        self._refuse_if_freed()
        assert self._comm is not None
        return self._comm
