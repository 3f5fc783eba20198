/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is covered by the simulated runs: the tables of everything that a handle and its
 * surroundings can be. A policy, a modifier, an algorithm or a network that is added
 * later is covered by being listed in space.c.
 */
#pragma once

#include <stdio.h>

#include "reference.h"
#include "world.h"

struct space_policy {
    const char *text; /* as users write it */
    quorum_rule *kept;
    uint32_t least; /* ranks */
};
extern const struct space_policy space_policies[];

int space_policy_count(void);
int space_modifier_count(void);
/* Row of a modifier. */
int space_modifier(const char *text);

/* What a handle's policy is, modifier and all. The text stays until the next call. */
const char *space_policy_text(const struct world_handle *h);
pcoll_policy space_policy_of(const struct world_handle *h);

struct space_algorithm {
    const char *name;
    int algorithm;
    result_rule *result;
};
extern const struct space_algorithm space_algorithms[];

/* How ranks are grouped, by the row in world_options: where each is, and the most in a
 * domain. The first row: all alone. */
int space_grouping_count(void);
uint32_t space_hosts(const struct world_options *o, uint64_t *hosts);
/* What has to come of it for a handle with this row's algorithm: the domain of each
 * rank that is not dead (NULL: of all), numbered by their lowest ranks; how many. */
uint32_t space_domains(const struct world_options *o, int algorithm, const bool *dead,
                       uint32_t *domain);

/* A run drawn from its seed, uniformly over the tables. */
struct world_options space_draw(uint64_t seed);
/* The same, in which ranks die. */
struct world_options space_draw_crashes(uint64_t seed);
/* It in words. */
void space_describe(const struct world_options *o, char *text, size_t capacity);

/* How many handles there were of each policy and algorithm, with so many ranks, and grouped so. */
struct space_tally {
    uint64_t runs, rounds, lost, handles, handles_of[16][8][LEDGER_MAX_RANKS + 1];
    uint64_t grouped_of[16][8][16];
    uint64_t died[WORLD_MOMENTS], recoveries, attempts, redone, grown, called_off,
        newcomers;
};
void space_count(struct space_tally *t, const struct world_options *o,
                 const struct world_report *r);
void space_print(const struct space_tally *t, FILE *out);
