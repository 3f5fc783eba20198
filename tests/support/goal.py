# SPDX-License-Identifier: Apache-2.0
"""A reader of GOAL, as strict as LogGOPSim's, and a run of its result without times."""

import re
from collections import Counter, defaultdict, namedtuple

Op = namedtuple("Op", "kind bytes peer tag time")
Rank = namedtuple("Rank", "ops requires")

MESSAGE = re.compile(r"(\w+): (send|recv) (\d+)b (to|from) (\d+) tag (\d+)")
CALC = re.compile(r"(\w+): calc (\d+)")
REQUIRES = re.compile(r"(\w+) requires (\w+)")


def parse_line(line, rank):
    """Parse one line inside a block. Comments have separate lines."""
    if line.startswith("//"):
        return
    message, calc = MESSAGE.fullmatch(line), CALC.fullmatch(line)
    needs = REQUIRES.fullmatch(line)
    if message:
        label, kind, size, word, peer, tag = message.groups()
        assert word == {"send": "to", "recv": "from"}[kind] and int(size) > 0
        assert label not in rank.ops
        rank.ops[label] = Op(kind, int(size), int(peer), int(tag), 0)
    elif calc:
        assert calc[1] not in rank.ops
        rank.ops[calc[1]] = Op("calc", 0, None, None, int(calc[2]))
    else:
        assert needs, line
        assert needs[1] in rank.ops and needs[2] in rank.ops
        rank.requires[needs[1]].add(needs[2])


def parse(text):
    """Return the ranks of a whole file, in order."""
    lines = text.splitlines()
    size = int(re.fullmatch(r"num_ranks (\d+)", lines[0])[1])
    ranks, current = {}, None
    for line in lines[1:]:
        begin = re.fullmatch(r"rank (\d+) \{", line)
        if begin:
            assert current is None and int(begin[1]) not in ranks
            current = ranks[int(begin[1])] = Rank({}, defaultdict(set))
        elif line == "}":
            current = None
        else:
            parse_line(line, current)
    assert current is None and sorted(ranks) == list(range(size))
    return [ranks[i] for i in range(size)]


def runs(ranks):
    """Return whether all operations end, and every message is received once with its size."""
    flying, done = Counter(), [set() for _ in ranks]
    moved = True
    while moved:
        moved = False
        for i, rank in enumerate(ranks):
            for label, op in rank.ops.items():
                if label in done[i] or not rank.requires[label] <= done[i]:
                    continue
                name = (i, op.peer) if op.kind == "send" else (op.peer, i)
                name = (*name, op.tag, op.bytes)
                if op.kind == "recv" and not flying[name]:
                    continue
                flying[name] += {"send": 1, "recv": -1, "calc": 0}[op.kind]
                done[i].add(label)
                moved = True
    return not any(flying.values()) and all(len(d) == len(r.ops) for d, r in zip(done, ranks))
