# SPDX-License-Identifier: Apache-2.0
"""The examples free what they create, because readers copy them."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Functions that create an object that all ranks free together, and the freeing function. Otherwise
# it is in a with statement, or a function returns it to one.
ENDS = {
    "Allreduce_init": "Free",
    "DistributedOptimizer": "close",
    "GlobalSum": "Free",
    "GossipBuffer": "Free",
    "GroupAllreduce_init": "Free",
    "PartialState": "close",
    "Schedule": "Free",
    "StateExchange": "Free",
}
PAIRS = [(r"\b(?:pct|hvd)\.init\(", "shutdown("), ("init_process_group", "destroy_process_group")]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_python_examples_free_their_objects(path):
    text = path.read_text()
    made = re.findall(rf"^ *(\w+) = (?:\w+\.)?({'|'.join(ENDS)})\b[\w.]*\(", text, re.MULTILINE)
    kept = [
        (name, maker)
        for name, maker in made
        if f"{name}.{ENDS[maker]}()" not in text and not re.search(rf"return {name}\b", text)
    ]
    assert not kept
    assert not [end for begin, end in PAIRS if re.search(begin, text) and end not in text]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("c/*.c")), ids=lambda path: path.stem)
def test_c_examples_free_their_objects(path):
    text = path.read_text()
    made = set(re.findall(r"\bpcoll_(\w+)_create\(", text))
    freed = {
        kind.replace("handle", "allreduce") for kind in re.findall(r"pcoll_(\w+)_free\(", text)
    }
    assert made == freed - {"text"}
