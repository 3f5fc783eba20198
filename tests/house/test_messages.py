# SPDX-License-Identifier: Apache-2.0
"""Only checked decoders read the words of messages and windows."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# The decoders, each with the file whose first lines describe its treatment of bad messages.
DECODERS = {
    "allreduce/control.c": "allreduce/control.h",
    "group/group_wire.c": "group/group_wire.h",
    "protocol/group/matchmaking.c": "protocol/group/matchmaking.c",
}
# Files that pass an undecoded message on, or refuse all of them.
CARRIERS = {
    "allreduce/control.h",
    "allreduce/endpoint.c",
    "group/group_agent.c",
    "group/group_wire.h",
    "runtime/communicator.h",
}
# Files that read words of windows, and the functions that check them.
WINDOW_READERS = {
    "gossip/accumulator.c": ("gossip_decode_lead",),
    "gossip/gossip_models.c": ("gossip_decode_version",),
    "group/group_wire.c": ("PCOLL_EPROTOCOL", "group_window_after_vote"),
}


def sources():
    for path in sorted(CSRC.rglob("*.[ch]")):
        name = path.relative_to(CSRC).as_posix()
        if not name.startswith("transport/"):
            yield name, path.read_text()


def test_values_are_read_by_decoders():
    """`message->value[i]` and the like appear only in decoders."""
    readers = {name for name, text in sources() if re.search(r"(->|\.)value\[", text)}
    assert readers <= set(DECODERS), f"raw words: {sorted(readers - set(DECODERS))}"


def test_undecoded_messages_stay_where_they_are_decoded():
    """Only decoders, and files that pass a message to them, use the type."""
    users = {name for name, text in sources() if "const struct control *" in text}
    assert users == set(DECODERS) - {"protocol/group/matchmaking.c"} | CARRIERS


def test_words_of_windows_are_checked():
    """A file that reads a word written by other ranks checks it."""
    for name, text in sources():
        if re.search(r"window_read_(word|swapped)\(", text):
            assert name in WINDOW_READERS, f"{name} reads words of windows"
            assert all(check in text for check in WINDOW_READERS[name]), name
        if re.search(r"% SLOT_STATES|& \(SLOT_STATES", text):
            assert name == "gossip/gossip.h", f"{name} takes states apart"


@pytest.mark.parametrize("name", sorted({*DECODERS.values(), "gossip/gossip.h"}))
def test_treatment_of_bad_messages_is_documented(name):
    """The top of the decoder's file describes it."""
    top = (CSRC / name).read_text().split("*/", 2)[1]
    assert re.search(r"Bad (messages|words)\.", top), name
    assert "PCOLL_EPROTOCOL" in top, name
