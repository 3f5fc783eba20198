# SPDX-License-Identifier: Apache-2.0
"""Mistakes in gossip buffers: register, accumulator, queue, deaths."""

from .mutant import Mutant

MUTANTS = [
    # The gossip buffers: register, accumulator, queue.
    Mutant(
        "a register has two slots",
        "gossip/gossip.h",
        "REGISTER_SLOTS = 3",
        "REGISTER_SLOTS = 2",
    ),
    Mutant(
        "a chunk is taken that may have been overwritten",
        "gossip/gossip_models.c",
        "*whole = *version - before <= 1;",
        "*whole = *version - before <= 3;",
    ),
    Mutant(
        "a register is not looked at again after it was read",
        "gossip/gossip_models.c",
        "?: register_version(memory, peer, &newest);",
        ";",
    ),
    Mutant(
        "a version is announced before it is written",
        "gossip/gossip_models.c",
        "    register_write_slot(memory, slot, x, &header);\n",
        "    window->ops->fetch_add(window, window->rank, gossip_word_at(WORD_VERSION),\n"
        "                           1, &last);\n"
        "    register_write_slot(memory, slot, x, &header);\n"
        "    window->ops->fetch_add(window, window->rank, gossip_word_at(WORD_VERSION),\n"
        "                           -1, &last);\n",
    ),
    Mutant(
        "one delta more than the cap",
        "gossip/accumulator.c",
        "*reserved = *uncollected < cap;",
        "*reserved = *uncollected <= cap;",
    ),
    Mutant(
        "a reservation that was refused stays",
        "gossip/accumulator.c",
        "return *reserved ? PCOLL_OK : accumulator_count_up(memory, peer, WORD_RESERVED, -1);",
        "return PCOLL_OK;",
    ),
    Mutant(
        "a delta lands before it has arrived",
        "gossip/accumulator.c",
        "    return memory->window->ops->flush(memory->window, peer)\n"
        "               ?: accumulator_count_up(memory, peer, WORD_LANDED, 1);",
        "    return accumulator_count_up(memory, peer, WORD_LANDED, 1);",
    ),
    Mutant(
        "what has landed meanwhile counts as collected",
        "gossip/accumulator.c",
        "if (rc == PCOLL_OK && *deltas)\n        rc = memory->window",
        "if (rc == PCOLL_OK && *deltas && landed++)\n        rc = memory->window",
    ),
    Mutant(
        "a chunk is given that was not taken from the model",
        "gossip/accumulator.c",
        "    if (rc != PCOLL_OK || !whole)\n        return rc;",
        "    if (rc != PCOLL_OK)\n        return rc;\n"
        "    if (!whole)\n        return accumulator_add(memory, peer, first, memory->change);",
    ),
    Mutant(
        "what was collected is not taken off the sum",
        "gossip/accumulator.c",
        "rc = accumulator_add(memory, rank, first, change);",
        "rc = PCOLL_OK;",
    ),
    Mutant(
        "who claims a slot does not look whether it was first",
        "gossip/gossip_models.c",
        "if (rc != PCOLL_OK || found == *word)",
        "if (rc != PCOLL_OK || found)",
    ),
    Mutant(
        "a message is announced before it has arrived",
        "gossip/gossip_models.c",
        "return rc ?: window->ops->flush(window, peer);",
        "return rc;",
    ),
    Mutant(
        "a slot of a queue has no generations",
        "gossip/gossip_models.c",
        "oldest.state - SLOT_FULL + SLOT_STATES",
        "oldest.state - SLOT_FULL",
    ),
    Mutant(
        "a message is not looked at again after it was read",
        "gossip/gossip_models.c",
        "if (word == newest.state) {",
        "if (word >= 0) {",
    ),
    Mutant(
        "a message is given free before it is read",
        "gossip/gossip_models.c",
        "        rc = queue_read(memory, own, &oldest, key, out, &whole)\n",
        "        queue_swap(memory, own, oldest.slot, oldest.state,\n"
        "                   oldest.state - SLOT_FULL + SLOT_STATES, &before);\n"
        "        rc = queue_read(memory, own, &oldest, key, out, &whole)\n",
    ),
    # Gossip buffers of ranks that die.
    Mutant(
        "half a delta of a dead rank counts as under way for ever",
        "gossip/accumulator.c",
        "return halves ? accumulator_count_up(memory, own, WORD_LANDED, halves) : rc;",
        "return rc;",
        "gossip crashes",
    ),
    Mutant(
        "a slot that a dead rank was writing to stays taken",
        "gossip/gossip_models.c",
        "if (rc == PCOLL_OK && state == SLOT_WRITING)",
        "if (rc == PCOLL_OK && state == SLOT_STATES)",
        "gossip crashes",
    ),
    Mutant(
        "what lay uncollected at a dead rank is lost",
        "gossip/accumulator.c",
        "return rc ?: accumulator_give(memory, memory->window->rank, first);",
        "return rc;",
        "gossip crashes",
    ),
    Mutant(
        "what lay uncollected at a dead rank is taken over twice",
        "gossip/accumulator.c",
        "    if (rc == PCOLL_OK)\n        rc = accumulator_give(memory, dead, first);\n",
        "",
        "gossip crashes",
    ),
    Mutant(
        "deltas of a dead rank are not counted where they are",
        "gossip/accumulator.c",
        "    rc = accumulator_count_up(memory, own, WORD_RESERVED, by)\n"
        "             ?: accumulator_count_up(memory, own, WORD_LANDED, by)",
        "    rc = accumulator_count_up(memory, own, WORD_LANDED, by)",
        "gossip crashes",
    ),
]
