/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The space that the simulated runs cover: tables of all variants of a handle and its
 * environment. To cover a new policy, modifier, algorithm or network, add it to space.c.
 */
#pragma once

#include <stdio.h>

#include "reference.h"
#include "world.h"

struct space_policy {
    const char *text; /* as users write it */
    quorum_rule *kept;
    uint32_t least; /* minimal number of ranks */
};
extern const struct space_policy space_policies[];

int space_policy_count(void);
int space_modifier_count(void);
/* Return the row of a modifier. */
int space_modifier(const char *text);

/* Return a handle's policy with its modifier. The text is valid until the next call. */
const char *space_policy_text(const struct world_handle *h);
pcoll_policy space_policy_of(const struct world_handle *h);

struct space_algorithm {
    const char *name;
    int algorithm;
    result_rule *result;
};
extern const struct space_algorithm space_algorithms[];

/* Groupings of ranks, by the row in world_options: the host of each rank. Return the
 * largest size of a domain. In the first row every rank is alone. */
int space_grouping_count(void);
uint32_t space_hosts(const struct world_options *o, uint64_t *hosts);
/* Compute the expected domains of a handle with this row's algorithm: the domain of
 * each live rank (dead == NULL: all live), numbered by their lowest ranks. Return their
 * number. */
uint32_t space_domains(const struct world_options *o, int algorithm, const bool *dead,
                       uint32_t *domain);

/* Draw a run from its seed, uniformly over the tables. */
struct world_options space_draw(uint64_t seed);
/* The same with ranks that die. */
struct world_options space_draw_crashes(uint64_t seed);
/* Describe a run in words. */
void space_describe(const struct world_options *o, char *text, size_t capacity);

/* The number of handles by policy, algorithm and number of ranks, and by grouping. */
struct space_tally {
    uint64_t runs, rounds, lost, handles, handles_of[16][8][LEDGER_MAX_RANKS + 1];
    uint64_t grouped_of[16][8][16];
    uint64_t died[WORLD_MOMENTS], recoveries, attempts, redone, grown, called_off,
        newcomers;
};
void space_count(struct space_tally *t, const struct world_options *o,
                 const struct world_report *r);
void space_print(const struct space_tally *t, FILE *out);
