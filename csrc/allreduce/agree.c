/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreement by maxima: the maximum of x and of ~x tell whether all x are equal; the
 * maximum of vectors that are zero but for one's own element gathers them.
 */
#include "agree.h"
#include "arrivals.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../algorithms/algorithms.h"
#include "../base/error.h"
#include "../base/splitmix.h"

/* On the heap, since MPI may write to it for as long as it likes after a failure. */
struct waiting {
    struct context *context;
    struct agreement agreement;
    uint64_t values[];
};

static bool over(void *arg)
{
    struct waiting *w = arg;
    return atomic_load(&w->agreement.done) || atomic_load(&w->context->failure);
}

int agree_begin(struct context *c, enum agree_op op, const uint64_t *values, int count,
                struct waiting **out)
{
    size_t bytes = (size_t)count * sizeof *values;
    int rc = context_check(c);
    if (rc != PCOLL_OK)
        return rc;
    struct waiting *w = malloc(sizeof *w + bytes);
    if (!w)
        return context_fail(c, fail(PCOLL_ENOMEM, "no memory for an agreement"));
    w->context = c;
    w->agreement = (struct agreement){.values = w->values, .count = count, .op = op};
    memcpy(w->values, values, bytes);
    progress_lock(c->progress);
    context_agree(c, &w->agreement); /* a failure is the context's */
    progress_unlock(c->progress);
    *out = w;
    return PCOLL_OK;
}

int agree_end(struct waiting *w, uint64_t *values)
{
    struct context *c = w->context;
    while (progress_wait(c->progress, over, w, 1000000) == PCOLL_EAGAIN)
        ;
    if (!atomic_load(&w->agreement.done))
        return context_check(c);
    memcpy(values, w->values, (size_t)w->agreement.count * sizeof *values);
    free(w);
    return context_check(c);
}

static int agree(struct context *c, enum agree_op op, uint64_t *values, int count)
{
    struct waiting *w;
    int rc = agree_begin(c, op, values, count, &w);
    return rc == PCOLL_OK ? agree_end(w, values) : rc;
}

int agree_max(struct context *c, uint64_t *values, int count)
{
    return agree(c, AGREE_MAX, values, count);
}

int agree_sum(struct context *c, uint64_t *values, int count)
{
    return agree(c, AGREE_SUM, values, count);
}

enum { NAME_LENGTH = 24 };

enum field {
    FIELD_VALID,
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

static const struct {
    const char *argument;
    const char *const *values; /* words for the values 0, 1 …; NULL: a number */
    bool real;                 /* the bits of a double */
} fields[FIELDS] = {
    [FIELD_VALID] = {"(validity)", NULL},
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
    f[FIELD_VALID] = 1;
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
    f[FIELD_RECORDS] = arrivals_wanted();
    f[FIELD_DOMAIN] = (uint64_t)o->domain;
    f[FIELD_DOMAIN_RANKS] = o->domain_ranks;
    f[FIELD_ALGORITHM] = (uint64_t)o->algorithm;
    f[FIELD_DELIVER] = (uint64_t)o->deliver;
    f[FIELD_LATE] = (uint64_t)o->late;
    f[FIELD_HISTORY] = o->history;
    f[FIELD_SEED] = o->seed;
    f[FIELD_NAME] = o->name;
}

static const char *show(enum field field, uint64_t value, char *text, size_t capacity)
{
    const char *const *words = fields[field].values;
    for (uint64_t i = 0; words && words[i]; i++)
        if (i == value)
            return words[i];
    double real;
    memcpy(&real, &value, sizeof real);
    if (fields[field].real)
        snprintf(text, capacity, "%g", real);
    else
        snprintf(text, capacity, "%" PRIu64, value);
    return text;
}

/* "4 on rank 0, 2; 5 on rank 1": the values in the order of their first rank. */
static void list_values(enum field field, const uint64_t *values, uint32_t ranks,
                        char *out, size_t capacity)
{
    size_t used = 0;
    bool *listed = calloc(ranks, sizeof *listed);
    for (uint32_t i = 0; listed && i < ranks && used < capacity; i++) {
        char number[NAME_LENGTH];
        if (listed[i])
            continue;
        used += (size_t)snprintf(out + used, capacity - used, "%s%s on rank",
                                 used ? "; " : "",
                                 show(field, values[i], number, sizeof number));
        for (uint32_t j = i; j < ranks && used < capacity; j++) {
            if (values[j] != values[i])
                continue;
            listed[j] = true;
            used += (size_t)snprintf(out + used, capacity - used, "%s %u",
                                     j == i ? "" : ",", j);
        }
    }
    free(listed);
}

int agree_gather(struct context *c, uint64_t value, uint64_t **values)
{
    *values = calloc(c->transport->size, sizeof **values);
    if (!*values)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", c->transport->size);
    (*values)[c->transport->rank] = value;
    return agree_max(c, *values, (int)c->transport->size);
}

static int report(struct context *c, enum field field, uint64_t own)
{
    uint64_t *values;
    char text[300] = "";
    int rc = agree_gather(c, own, &values);
    if (rc == PCOLL_OK && field == FIELD_VALID) {
        size_t used = 0;
        for (uint32_t i = 0; i < c->transport->size && used < sizeof text; i++)
            if (!values[i])
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%u",
                                         used ? ", " : "", i);
        rc = fail(PCOLL_EMISMATCH, "the arguments of rank %s are not valid", text);
    } else if (rc == PCOLL_OK) {
        list_values(field, values, c->transport->size, text, sizeof text);
        rc = fail(PCOLL_EMISMATCH, "the ranks disagree about %s: %s",
                  fields[field].argument, text);
    }
    free(values);
    return rc;
}

int agree_arguments(struct context *c, int local, const pcoll_buffer *buffers,
                    int nbuffers, const struct payload *payload,
                    const pcoll_options *options)
{
    uint64_t own[FIELDS], both[2 * FIELDS];
    char message[512];
    snprintf(message, sizeof message, "%s", pcoll_last_error());
    if (local == PCOLL_OK)
        fill_fields(own, buffers, nbuffers, payload, options);
    else
        memset(own, 0, sizeof own);
    for (int i = 0; i < FIELDS; i++) {
        both[i] = own[i];
        both[FIELDS + i] = ~own[i];
    }
    int rc = agree_max(c, both, 2 * FIELDS);
    for (int i = 0; i < FIELDS && rc == PCOLL_OK; i++)
        if (both[i] != ~both[FIELDS + i])
            rc = report(c, (enum field)i, own[i]);
    return local == PCOLL_OK ? rc : fail(local, "%s", message);
}

static int agree_slot(struct context *c, uint32_t slots, uint32_t *slot)
{
    uint32_t from = 0;
    for (;;) {
        uint64_t both[3] = {0};
        both[2] = context_free_slots(c, from, slots, slot) != PCOLL_OK;
        both[0] = both[2] ? 0 : *slot;
        both[1] = both[2] ? 0 : ~(uint64_t)*slot;
        int rc = agree_max(c, both, 3);
        if (rc != PCOLL_OK)
            return rc;
        if (both[2])
            return fail(PCOLL_EINVAL,
                        "this communicator has no tags left for another one");
        if (both[0] == ~both[1])
            return PCOLL_OK;
        from = (uint32_t)both[0];
    }
}

int agree_outcome(struct context *c, int local)
{
    char message[512];
    snprintf(message, sizeof message, "%s", pcoll_last_error());
    uint64_t failed = local != PCOLL_OK;
    int rc = agree_max(c, &failed, 1);
    if (local != PCOLL_OK)
        return fail(local, "%s", message);
    if (rc == PCOLL_OK && failed)
        return fail(PCOLL_ENOMEM, "another rank could not make its part");
    return rc;
}

static bool nothing_closes(void *arg)
{
    struct context *c = arg;
    return !atomic_load(&c->closings) || atomic_load(&c->failure);
}

void agree_settle(struct context *c)
{
    while (progress_wait(c->progress, nothing_closes, c, 1000000) == PCOLL_EAGAIN)
        ;
}

static int enter_table(struct context *c, struct participant *p, uint32_t slot)
{
    progress_lock(c->progress);
    int rc = context_register(c, p, slot);
    progress_unlock(c->progress);
    return rc;
}

int agree_enter(struct context *c, struct participant *p)
{
    uint32_t slot;
    int rc = agree_slot(c, p->slots, &slot);
    if (rc != PCOLL_OK)
        return rc;
    int entered = enter_table(c, p, slot);
    rc = agree_outcome(c, entered);
    if (rc != PCOLL_OK && entered == PCOLL_OK) {
        progress_lock(c->progress);
        context_unregister(c, slot);
        progress_unlock(c->progress);
    }
    return rc;
}
