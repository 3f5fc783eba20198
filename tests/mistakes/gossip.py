# SPDX-License-Identifier: Apache-2.0
"""Mistakes in gossip buffers: register, accumulator, queue, deaths of ranks."""

from .mutant import Mutant

MUTANTS = [
    # The gossip buffers: register, accumulator, queue.
    Mutant(
        "a register has two slots instead of three",
        "gossip/gossip.h",
        "REGISTER_SLOTS = 3",
        "REGISTER_SLOTS = 2",
    ),
    Mutant(
        "a reader accepts a chunk that may have been overwritten",
        "gossip/gossip_models.c",
        "*whole = *version - before <= 1;",
        "*whole = *version - before <= 3;",
    ),
    Mutant(
        "a reader does not check the register's version after a copy",
        "gossip/gossip_models.c",
        "?: register_version(memory, peer, &newest);",
        ";",
    ),
    Mutant(
        "the version counter rises before the slot is written",
        "gossip/gossip_models.c",
        "    register_write_slot(memory, slot, x, &header);\n",
        "    window->ops->fetch_add(window, window->rank, gossip_word_at(WORD_VERSION),\n"
        "                           1, &last);\n"
        "    register_write_slot(memory, slot, x, &header);\n"
        "    window->ops->fetch_add(window, window->rank, gossip_word_at(WORD_VERSION),\n"
        "                           -1, &last);\n",
    ),
    Mutant(
        "an accumulator accepts one delta more than its cap",
        "gossip/accumulator.c",
        "*reserved = *uncollected < cap;",
        "*reserved = *uncollected <= cap;",
    ),
    Mutant(
        "a refused reservation is not withdrawn",
        "gossip/accumulator.c",
        "return *reserved ? PCOLL_OK : accumulator_count_up(memory, peer, WORD_RESERVED, -1);",
        "return PCOLL_OK;",
    ),
    Mutant(
        "a delta counts as landed before the flush is complete",
        "gossip/accumulator.c",
        "    return memory->window->ops->flush(memory->window, peer)\n"
        "               ?: accumulator_count_up(memory, peer, WORD_LANDED, 1);",
        "    return accumulator_count_up(memory, peer, WORD_LANDED, 1);",
    ),
    Mutant(
        "the owner counts one more delta as collected than had landed",
        "gossip/accumulator.c",
        "if (rc == PCOLL_OK && *deltas)\n        rc = memory->window",
        "if (rc == PCOLL_OK && *deltas && landed++)\n        rc = memory->window",
    ),
    Mutant(
        "a rank adds a chunk to the peer's sum after a torn read",
        "gossip/accumulator.c",
        "    if (rc != PCOLL_OK || !whole)\n        return rc;",
        "    if (rc != PCOLL_OK)\n        return rc;\n"
        "    if (!whole)\n        return accumulator_add(memory, peer, first, memory->change);",
    ),
    Mutant(
        "the owner does not subtract a collected chunk from its sum",
        "gossip/accumulator.c",
        "rc = accumulator_add(memory, rank, first, change);",
        "rc = PCOLL_OK;",
    ),
    Mutant(
        "a sender does not check whether its swap claimed the queue slot",
        "gossip/gossip_models.c",
        "if (rc != PCOLL_OK || found == *word)",
        "if (rc != PCOLL_OK || found)",
    ),
    Mutant(
        "a sender marks a queue slot full before the message has arrived",
        "gossip/gossip_models.c",
        "return rc ?: window->ops->flush(window, peer);",
        "return rc;",
    ),
    Mutant(
        "a freed queue slot keeps its generation number",
        "gossip/gossip_models.c",
        "oldest.state - SLOT_FULL + SLOT_STATES",
        "oldest.state - SLOT_FULL",
    ),
    Mutant(
        "a peek does not check whether the message changed during the copy",
        "gossip/gossip_models.c",
        "if (word == newest.state) {",
        "if (word >= 0) {",
    ),
    Mutant(
        "the owner frees a queue slot before it reads the message",
        "gossip/gossip_models.c",
        "        rc = queue_read(memory, own, &oldest, key, out, &whole)\n",
        "        queue_swap(memory, own, oldest.slot, oldest.state,\n"
        "                   oldest.state - SLOT_FULL + SLOT_STATES, &before);\n"
        "        rc = queue_read(memory, own, &oldest, key, out, &whole)\n",
    ),
    # Gossip buffers of ranks that die.
    Mutant(
        "an unfinished delta of a dead rank stays reserved forever",
        "gossip/accumulator.c",
        "return halves ? accumulator_count_up(memory, own, WORD_LANDED, halves) : rc;",
        "return rc;",
        "gossip crashes",
    ),
    Mutant(
        "a queue slot that a dead rank was writing is never freed",
        "gossip/gossip_models.c",
        "if (rc == PCOLL_OK && state == SLOT_WRITING)",
        "if (rc == PCOLL_OK && state == SLOT_STATES)",
        "gossip crashes",
    ),
    Mutant(
        "the adopting rank does not add a dead rank's sum to its own",
        "gossip/accumulator.c",
        "return rc ?: accumulator_give(memory, memory->window->rank, first);",
        "return rc;",
        "gossip crashes",
    ),
    Mutant(
        "the adopting rank does not remove the sum from the dead rank",
        "gossip/accumulator.c",
        "    if (rc == PCOLL_OK)\n        rc = accumulator_give(memory, dead, first);\n",
        "",
        "gossip crashes",
    ),
    Mutant(
        "the adopting rank does not count adopted deltas as reserved",
        "gossip/accumulator.c",
        "    rc = accumulator_count_up(memory, own, WORD_RESERVED, by)\n"
        "             ?: accumulator_count_up(memory, own, WORD_LANDED, by)",
        "    rc = accumulator_count_up(memory, own, WORD_LANDED, by)",
        "gossip crashes",
    ),
]
