/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of an allreduce, as numbers that its ranks compare. */
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/random.h"
#include "runtime/agreement.h"
#include "allreduce/event_log.h"

enum field {
    FIELD_BUFFERS,
    FIELD_COUNT,
    FIELD_DTYPE,
    FIELD_OP,
    FIELD_ELEMENT,
    FIELD_POLICY,
    FIELD_POLICY_COUNT,
    FIELD_POLICY_FRACTION,
    FIELD_LINGER,
    FIELD_DEADLINE,
    FIELD_MAX_STALENESS,
    FIELD_RECORDS,
    FIELD_DOMAIN,
    FIELD_DOMAIN_RANKS,
    FIELD_ALGORITHM,
    FIELD_DELIVER,
    FIELD_LATE,
    FIELD_HISTORY,
    FIELD_SEED,
    FIELD_NAME,
    FIELDS
};

static const char *const policy_names[] = {"solo",     "majority", "full", "quorum",
                                           "first_of", "last_of",  NULL};
static const char *const deliver_names[] = {"one", "all", NULL};
static const char *const set_names[] = {"not set", "set", NULL};
static const char *const domain_names[] = {"node", "rank", "auto", NULL};
static const char *const late_names[] = {"carry", "latest", "drop", NULL};

static const struct agree_field fields[FIELDS] = {
    [FIELD_BUFFERS] = {"number of buffers", NULL},
    [FIELD_COUNT] = {"count", NULL},
    [FIELD_DTYPE] = {"dtype", dtype_names},
    [FIELD_OP] = {"op", op_names},
    [FIELD_ELEMENT] = {"datatype (bytes of an element)", NULL},
    [FIELD_POLICY] = {"quorum", policy_names},
    [FIELD_POLICY_COUNT] = {"quorum (number of ranks)", NULL},
    [FIELD_POLICY_FRACTION] = {"quorum (fraction)", .real = true},
    [FIELD_LINGER] = {"quorum (linger)", .real = true},
    [FIELD_DEADLINE] = {"quorum (deadline)", .real = true},
    [FIELD_MAX_STALENESS] = {"quorum (max_staleness)", NULL},
    [FIELD_RECORDS] = {"PARTIALCOLL_RECORD, PARTIALCOLL_REPLAY", set_names},
    [FIELD_DOMAIN] = {"domain", domain_names},
    [FIELD_DOMAIN_RANKS] = {"domain (most ranks)", NULL},
    [FIELD_ALGORITHM] = {"algorithm", algorithm_names},
    [FIELD_DELIVER] = {"deliver", deliver_names},
    [FIELD_LATE] = {"late", late_names},
    [FIELD_HISTORY] = {"history", NULL},
    [FIELD_SEED] = {"seed", NULL},
    [FIELD_NAME] = {"name (its hash)", NULL},
};

/* One buffer: the value itself. Several: a hash of all, which only shows that they
 * differ. */
static uint64_t fold(uint64_t so_far, uint64_t value, int nbuffers)
{
    return nbuffers == 1 ? value : splitmix_mix(so_far ^ (value + 1)) >> 1;
}

static void fill_fields(uint64_t *f, const pcoll_buffer *buffers, int nbuffers,
                        const struct payload *payload, const pcoll_options *o)
{
    memset(f, 0, FIELDS * sizeof *f);
    f[FIELD_BUFFERS] = (uint64_t)nbuffers;
    for (int i = 0; i < nbuffers; i++) {
        f[FIELD_COUNT] = fold(f[FIELD_COUNT], buffers[i].count, nbuffers);
        f[FIELD_DTYPE] = fold(f[FIELD_DTYPE], (uint64_t)buffers[i].dtype, nbuffers);
        f[FIELD_OP] = fold(f[FIELD_OP], (uint64_t)buffers[i].op, nbuffers);
        f[FIELD_ELEMENT] = fold(f[FIELD_ELEMENT], payload->part[i].element, nbuffers);
    }
    f[FIELD_POLICY] = (uint64_t)o->policy.kind;
    f[FIELD_POLICY_COUNT] = o->policy.count;
    memcpy(&f[FIELD_POLICY_FRACTION], &o->policy.fraction, sizeof *f);
    memcpy(&f[FIELD_LINGER], &o->policy.linger, sizeof *f);
    memcpy(&f[FIELD_DEADLINE], &o->policy.deadline, sizeof *f);
    f[FIELD_MAX_STALENESS] = o->policy.max_staleness;
    f[FIELD_RECORDS] = event_log_wanted();
    f[FIELD_DOMAIN] = (uint64_t)o->domain;
    f[FIELD_DOMAIN_RANKS] = o->domain_ranks;
    f[FIELD_ALGORITHM] = (uint64_t)o->algorithm;
    f[FIELD_DELIVER] = (uint64_t)o->deliver;
    f[FIELD_LATE] = (uint64_t)o->late;
    f[FIELD_HISTORY] = o->history;
    f[FIELD_SEED] = o->seed;
    f[FIELD_NAME] = o->name;
}

int agree_arguments(struct communicator *c, int local, const pcoll_buffer *buffers,
                    int nbuffers, const struct payload *payload,
                    const pcoll_options *options)
{
    _Static_assert((int)FIELDS <= (int)AGREE_FIELDS, "room for all of them");
    uint64_t own[FIELDS] = {0};
    if (local == PCOLL_OK)
        fill_fields(own, buffers, nbuffers, payload, options);
    return agree_same(c, local, fields, own, FIELDS);
}
