# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the simulator itself."""

from .mutant import Mutant

MUTANTS = [
    # The simulator runs csrc/gossip and csrc/group. These mistakes are in the simulator.
    Mutant(
        "simulated: an average goes to where its peer was before others gave to it",
        "gossip/accumulator.c",
        "own, uncollected > 0, &version",
        "own, false, &version",
        program="simulator",
    ),
    Mutant(
        "simulated: a delta lands before it has arrived",
        "gossip/accumulator.c",
        "    return memory->window->ops->flush(memory->window, peer)\n"
        "               ?: accumulator_count_up(memory, peer, WORD_LANDED, 1);",
        "    return accumulator_count_up(memory, peer, WORD_LANDED, 1);",
        program="simulator",
    ),
    Mutant(
        "simulated: what was collected is not taken off the sum",
        "gossip/accumulator.c",
        "rc = accumulator_add(memory, rank, first, change);",
        "rc = PCOLL_OK;",
        program="simulator",
    ),
    Mutant(
        "simulated: a message is announced before it has arrived",
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
        "simulated: two rounds along each axis",
        "protocol/group/grid.c",
        "return (uint32_t)(round % g->axes);",
        "return (uint32_t)(round / 2 % g->axes);",
        program="simulator",
    ),
    Mutant(
        "simulated: a void round is told as one that counts",
        "group/group_agent.c",
        "        .is_void = !counts,",
        "        .is_void = false,",
        program="simulator",
    ),
]
