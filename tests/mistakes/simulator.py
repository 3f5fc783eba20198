# SPDX-License-Identifier: Apache-2.0
"""Mistakes in csrc/gossip and csrc/group that the test of the simulator must detect."""

from .mutant import Mutant

MUTANTS = [
    # The simulator runs these sources, too.
    Mutant(
        "simulated: an average ignores the deltas that wait at the peer",
        "gossip/accumulator.c",
        "own, uncollected > 0, &version",
        "own, false, &version",
        program="simulator",
    ),
    Mutant(
        "simulated: a delta counts as landed before the flush is complete",
        "gossip/accumulator.c",
        "    return memory->window->ops->flush(memory->window, peer)\n"
        "               ?: accumulator_count_up(memory, peer, WORD_LANDED, 1);",
        "    return accumulator_count_up(memory, peer, WORD_LANDED, 1);",
        program="simulator",
    ),
    Mutant(
        "simulated: the owner does not subtract a collected chunk from its sum",
        "gossip/accumulator.c",
        "rc = accumulator_add(memory, rank, first, change);",
        "rc = PCOLL_OK;",
        program="simulator",
    ),
    Mutant(
        "simulated: a sender marks a queue slot full before the message has arrived",
        "gossip/gossip_models.c",
        "return rc ?: window->ops->flush(window, peer);",
        "return rc;",
        program="simulator",
    ),
    Mutant(
        "simulated: the last member's input is left out of the sum",
        "group/group_data.c",
        "    if (!first)\n        r->add(",
        "    if (!first && member + 1 < r->group.members)\n        r->add(",
        program="simulator",
    ),
    Mutant(
        "simulated: two rounds in a row use the same axis",
        "protocol/group/grid.c",
        "return (uint32_t)(round % g->axes);",
        "return (uint32_t)(round / 2 % g->axes);",
        program="simulator",
    ),
    Mutant(
        "simulated: a void round is not reported as void",
        "group/group_agent.c",
        "        .is_void = !counts,",
        "        .is_void = false,",
        program="simulator",
    ),
]
