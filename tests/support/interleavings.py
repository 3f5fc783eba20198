# SPDX-License-Identifier: Apache-2.0
"""The pairing `available` under every order of its board operations, or under drawn ones.

A state holds the words of the board, the counter, and for each rank its knowledge at the start
of its poll and the results of its operations since then: a poll is a function of these, so it
can be resumed in any state. The board is as weak as `Board` allows: words are read one by one.
For the checks, a state also holds whether each rank was taken and does not know it yet, and
which rank it has taken in this poll.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import NamedTuple

from partialcoll.topology.pairing import TAKEN, Available


class Wrong(AssertionError):
    """A property of the pairing is violated."""


class Rank(NamedTuple):
    """One rank. `call` is None between polls."""

    wanted: int  # remaining averagings to find
    knows: tuple  # attributes of Available that last between polls
    call: str | None = None
    results: tuple = ()
    reading: tuple | None = None
    was_taken: bool = False
    took: int | None = None
    dead: bool = False


class State(NamedTuple):
    words: tuple
    counter: int
    ranks: tuple


class World:
    """n ranks with a pairing class, on a topology. Each must find `wanted` partners."""

    def __init__(self, kind, topology, wanted, *, leaves=(), dies=()):
        self.kind, self.topology = kind, topology
        self.leaves, self.dies = set(leaves), set(dies)
        self.fields = ("_ticket", "waiting", *getattr(kind, "FIELDS", ()))
        fresh = kind(topology, 0, None)
        rank = Rank(wanted, tuple(getattr(fresh, f) for f in self.fields))
        self.start = State((0,) * topology.n, 0, (rank,) * topology.n)
        self._next = lru_cache(None)(self._next)

    def _next(self, me, knows, call, results):
        """Return the next step after these results: (operation, None) or (outcome, knows)."""
        pairing = self.kind(self.topology, me, None)
        for field, value in zip(self.fields, knows):
            setattr(pairing, field, value)
        steps = pairing.steps() if call == "poll" else pairing.leaving()
        try:
            operation = next(steps)
            for result in results:
                operation = steps.send(result)
            return operation, None
        except StopIteration as end:
            return end.value, tuple(getattr(pairing, f) for f in self.fields)

    def moves(self, state):
        """Yield possible next steps: (rank, call to begin or "" to continue or "die")."""
        for me, rank in enumerate(state.ranks):
            if rank.dead:
                continue
            if rank.call:
                yield me, ""
            elif rank.wanted:
                yield me, "poll"
                if me in self.leaves:
                    yield me, "leave"
            if me in self.dies and (rank.call or rank.wanted):
                yield me, "die"

    def step(self, state, me, what):
        """Return the state after one operation of one rank. Raises Wrong."""
        rank = state.ranks[me]
        if what == "die":
            return self._put(state, me, rank._replace(dead=True, call=None, results=()))
        if what:
            rank = rank._replace(call=what, took=None)
        operation, _ = self._next(me, rank.knows, rank.call, rank.results)
        words, counter = state.words, state.counter
        result = None
        method, *arguments = operation or (None,)
        if method == "read_all":
            seen = (rank.reading or ()) + (words[len(rank.reading or ())],)
            rank = rank._replace(reading=seen)
            if len(seen) < len(words):
                return self._put(state, me, rank)
            result, rank = seen, rank._replace(reading=None)
        elif method == "fetch_add":
            result, counter = counter, counter + arguments[0]
        elif method is not None:
            index, expected, desired = arguments
            result = words[index]
            if result == expected:
                if index != me:
                    state, rank = self._take(state, me, rank, index, expected)
                words = _changed(words, index, desired)
        state = state._replace(words=words, counter=counter)
        if operation is None:  # a `leave` without effect
            return self._ended(state, me, rank, None, rank.knows)
        rank = rank._replace(results=(*rank.results, result))
        outcome, knows = self._next(me, rank.knows, rank.call, rank.results)
        if knows is None:
            return self._put(state, me, rank)
        return self._ended(state, me, rank, outcome, knows)

    def _take(self, state, me, rank, index, ticket):
        """Check that rank `me` may take another one."""
        other = state.ranks[index]
        self._check(other.was_taken is False, f"two take rank {index}")
        self._check(self._joined(me, index), f"rank {me} takes {index}, no neighbor of its")
        seen = [r for r in rank.results if isinstance(r, tuple)][-1]
        older = [i for i, t in enumerate(seen) if 0 < t < ticket and self._joined(me, i)]
        self._check(not older, f"rank {me} takes {index} although {older} waited longer")
        state = self._put(state, index, other._replace(was_taken=True))
        return state, rank._replace(took=index)

    def _ended(self, state, me, rank, outcome, knows):
        """End a poll or a leave, and check its outcome."""
        rank = state.ranks[me]._replace(took=rank.took, results=rank.results, call=rank.call)
        if outcome is TAKEN:
            self._check(rank.was_taken, f"rank {me} says that it was taken, and was not")
        elif outcome is not None:
            self._check(rank.took == outcome, f"rank {me} did not take {outcome}")
        if outcome is not TAKEN and (outcome is not None or rank.call == "leave"):
            self._check(not rank.was_taken, f"rank {me} takes or leaves and was taken")
        if outcome is not None or rank.call == "leave":
            self._check(not state.words[me], f"rank {me} is done and its ticket is posted")
        count = [not isinstance(r, tuple) for r in rank.results]
        self._check(sum(count) <= 8 and len(count) - sum(count) <= 4, "too many operations")
        wanted = 0 if rank.call == "leave" else rank.wanted - (outcome is not None)
        taken = rank.was_taken and outcome is not TAKEN
        return self._put(state, me, Rank(wanted, knows, was_taken=taken))

    def stuck(self, state):
        """Return ranks whose state no longer changes if all keep polling, or None."""
        waiting = []
        for me, rank in enumerate(state.ranks):
            if rank.dead or (rank.call is None and not rank.wanted):
                continue
            if rank.call is not None:
                return None
            after = self.step(state, me, "poll")
            while after.ranks[me].call:
                after = self.step(after, me, "")
            if after != state:
                return None
            waiting.append(me)
        return waiting

    def check_end(self, waiting):
        """Check that no two of the ranks that wait at the end are neighbors."""
        for a in waiting:
            for b in waiting:
                self._check(a == b or not self._joined(a, b), f"{a} and {b} wait for ever")

    def _joined(self, a, b):
        return self.topology.has_edge(a, b) or self.topology.has_edge(b, a)

    def _put(self, state, me, rank):
        return state._replace(ranks=_changed(state.ranks, me, rank))

    def _check(self, good, message):
        if not good:
            raise Wrong(message)


def _changed(values, index, value):
    return (*values[:index], value, *values[index + 1 :])


def explore(world, limit=200_000):
    """Visit every reachable state once. Return (states, ends).

    Check that an end can be reached from every state: no rank is busy forever. More states than
    `limit` are wrong as well: a correct pairing has a known number of them.
    """
    numbers, before, ends = {world.start: 0}, [[]], []
    todo = deque([world.start])
    while todo:
        state = todo.popleft()
        number = numbers[state]
        waiting = world.stuck(state)
        if waiting is not None:
            world.check_end(waiting)
            ends.append(number)
        for me, what in world.moves(state):
            after = world.step(state, me, what)
            if after not in numbers:
                if len(numbers) >= limit:
                    raise Wrong(f"more than {limit} states")
                numbers[after] = len(before)
                before.append([])
                todo.append(after)
            before[numbers[after]].append(number)
    if len(_reaching(ends, before)) < len(numbers):
        raise Wrong("from some state no end is ever reached")
    return len(numbers), len(ends)


def _reaching(ends, before):
    found, todo = set(ends), list(ends)
    while todo:
        for number in before[todo.pop()]:
            if number not in found:
                found.add(number)
                todo.append(number)
    return found


def draw(world, rng, limit=100_000):
    """Run one drawn order of operations to its end. Return the number of operations."""
    state = world.start
    for steps in range(limit):
        if steps % 64 == 63:
            state = _settled(world, state)
        waiting = world.stuck(state)
        if waiting is not None:
            world.check_end(waiting)
            return steps
        moves = list(world.moves(state))
        # Usually ranks continue; rarely they leave or die.
        usual = [move for move in moves if move[1] in ("", "poll")]
        state = world.step(state, *rng.choice(usual if usual and rng.random() < 0.98 else moves))
    raise Wrong(f"no end after {limit} operations")


def _settled(world, state):
    """End all current polls: otherwise a rank that waits forever cannot be detected."""
    for me in range(len(state.ranks)):
        while state.ranks[me].call:
            state = world.step(state, me, "")
    return state


class SkipsTheSecondScan(Available):
    """Planted: a rank that waits does not look for older ones."""

    def _oldest(self, words):
        return None if self.waiting else super()._oldest(words)


class LooksOnce(Available):
    """Planted: a rank looks for older ones once after posting, and not in later polls."""

    FIELDS = ("looked",)
    looked = False

    def _oldest(self, words):
        if self.waiting and self.looked:
            return None
        self.looked = self.waiting
        return super()._oldest(words)


class WithdrawsBlindly(Available):
    """Planted: a plain store of 0, which does not tell whether the rank was taken before."""

    def _withdraw(self):
        yield from super()._withdraw()
        return True


class DoesNotWithdraw(Available):
    """Planted: takes a rank while its own ticket is still on the board."""

    def _withdraw(self):
        return True
        yield


class TakesBlindly(Available):
    """Planted: ignores the result of the swap on another rank's word."""

    def steps(self):
        steps = super().steps()
        operation = next(steps)
        while True:
            result = yield operation
            method, *arguments = operation
            if method == "compare_and_swap" and arguments[0] != self.rank:
                result = arguments[1]
            try:
                operation = steps.send(result)
            except StopIteration as end:
                return end.value


class TakesTheNewest(Available):
    """Planted: last in, first out."""

    def _oldest(self, words):
        waiting = [(t, i) for i, t in enumerate(words) if t and i != self.rank]
        waiting = [(t, i) for t, i in waiting if self._may_meet(i)]
        limit = self._ticket if self.waiting else float("inf")
        return max(((t, i) for t, i in waiting if t < limit), default=(0, None))[1]


class TakesAnybody(Available):
    """Planted: does not check that the other rank is a neighbor."""

    def _may_meet(self, other):
        return True


class KeepsItsTicketPosted(Available):
    """Planted: leaves without withdrawing."""

    def leaving(self):
        return self._end(None)
        yield


PLANTED = (
    SkipsTheSecondScan,
    LooksOnce,
    WithdrawsBlindly,
    DoesNotWithdraw,
    TakesBlindly,
    TakesTheNewest,
    TakesAnybody,
    KeepsItsTicketPosted,
)
