/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See agreement.h. Maxima compare and gather: the maxima of x and of ~x tell whether all x are
 * equal, and the maximum of vectors that are zero but for a rank's own element gathers them.
 */
#include "runtime/agreement.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"

/* On the heap, since MPI may write to it as long as it likes after a failure. */
struct waiting {
    struct communicator *communicator;
    struct agreement agreement;
    uint32_t epoch;
    uint64_t values[];
};

bool agree_is_over(void *waiting)
{
    struct waiting *w = waiting;
    return atomic_load(&w->agreement.done) || atomic_load(&w->communicator->failure) ||
           outage_since(w->communicator->outage, w->epoch);
}

/* Return PCOLL_OK, or why nothing can be agreed on now. */
static int agree_check(struct communicator *c)
{
    return outage_now(c->outage) ? outage_error(c->outage) : communicator_check(c);
}

int agree_begin(struct communicator *c, enum agree_op op, const uint64_t *values,
                int count, struct waiting **out)
{
    size_t bytes = (size_t)count * sizeof *values;
    uint32_t epoch = outage_epoch(c->outage);
    int rc = agree_check(c);
    if (rc != PCOLL_OK)
        return rc;
    struct waiting *w = malloc(sizeof *w + bytes);
    if (!w)
        return communicator_fail_undriven(
            c, fail(PCOLL_ENOMEM, "no memory for an agreement"));
    w->communicator = c;
    w->epoch = epoch;
    w->agreement = (struct agreement){.values = w->values, .count = count, .op = op};
    memcpy(w->values, values, bytes);
    communicator_agree(c, &w->agreement); /* a failure is the communicator's */
    *out = w;
    return PCOLL_OK;
}

static void agree_explain(void *waiting, char *text, size_t capacity)
{
    (void)waiting;
    snprintf(text, capacity,
             "other ranks have not made a collective call that this one has made: they "
             "make or free something, or end MPI");
}

int agree_end(struct waiting *w, uint64_t *values)
{
    struct communicator *c = w->communicator;
    progress_wait_or_warn(c->progress, c->transport->rank, agree_is_over, w,
                          agree_explain);
    if (!atomic_load(&w->agreement.done))
        return atomic_load(&c->failure) ? communicator_check(c)
                                        : outage_error(c->outage);
    memcpy(values, w->values, (size_t)w->agreement.count * sizeof *values);
    free(w);
    return agree_check(c);
}

static int agree(struct communicator *c, enum agree_op op, uint64_t *values, int count)
{
    struct waiting *w = NULL;
    progress_lock(c->progress);
    int rc = agree_begin(c, op, values, count, &w);
    progress_unlock(c->progress);
    MOMENT("agreeing");
    return rc ?: agree_end(w, values);
}

int agree_max(struct communicator *c, uint64_t *values, int count)
{
    return agree(c, AGREE_MAX, values, count);
}

int agree_sum(struct communicator *c, uint64_t *values, int count)
{
    return agree(c, AGREE_SUM, values, count);
}

int agree_gather(struct communicator *c, uint64_t value, uint64_t **values)
{
    *values = calloc(c->transport->size, sizeof **values);
    if (!*values)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", c->transport->size);
    (*values)[c->transport->rank] = value;
    return agree_max(c, *values, (int)c->transport->size);
}

int agree_refusals(struct communicator *c, bool refused, const struct reason *reason,
                   int code, const char *whose, const char *what)
{
    struct reason first;
    char ranks[200] = "";
    uint64_t *who, words[sizeof first.text / sizeof(uint64_t)] = {0};
    struct text text = {.at = ranks, .left = sizeof ranks};
    int rc = agree_gather(c, refused, &who);
    for (uint32_t i = 0; rc == PCOLL_OK && i < c->transport->size; i++) {
        if (!who[i])
            continue;
        if (!text.items && i == c->transport->rank)
            memcpy(words, reason->text, sizeof words);
        text_add(&text, "%s%u", text.items++ ? ", " : "", i);
    }
    free(who);
    CHECK(rc != PCOLL_OK || text.items);
    rc = rc ?: agree_max(c, words, (int)(sizeof words / sizeof *words));
    memcpy(first.text, words, sizeof words);
    first.text[sizeof words - 1] = '\0';
    return rc ?: fail(code, "%s %s %s: %s", whose, ranks, what, first.text);
}

/* agree_outcome, and in the same agreement replace the values but the first by their maxima. */
static int agree_outcome_with(struct communicator *c, int local, uint64_t *values,
                              int count)
{
    CHECK(c->progress);
    struct reason reason;
    fail_reason(&reason);
    values[0] = local != PCOLL_OK;
    int rc = agree_max(c, values, count);
    if (rc == PCOLL_OK && values[0])
        rc = agree_refusals(c, local != PCOLL_OK, &reason, PCOLL_ENOMEM, "rank",
                            "could not make its part");
    /* A death shows in other errors, too: the memory of a rank that has given up is gone. */
    bool died = rc == PCOLL_EFAILED && local != PCOLL_EFAILED;
    return local == PCOLL_OK || died ? rc : fail(local, "%s", reason.text);
}

int agree_outcome(struct communicator *c, int local)
{
    uint64_t failed;
    return agree_outcome_with(c, local, &failed, 1);
}

static bool agree_nothing_closes(void *arg)
{
    struct communicator *c = arg;
    return !atomic_load(&c->closings) || atomic_load(&c->failure) ||
           outage_now(c->outage);
}

void agree_settle(struct communicator *c)
{
    CHECK(c->progress);
    progress_wait_or_warn(c->progress, c->transport->rank, agree_nothing_closes, c,
                          agree_explain);
}

/* Each rank enters p at the lowest slots that are free there, before it says so. If these are not
 * the same on all ranks, each takes p out and searches again from the highest. */
int agree_enter(struct communicator *c, struct object *p, int local)
{
    for (uint32_t from = 0;;) {
        uint32_t slot = 0;
        bool full = local == PCOLL_OK &&
                    communicator_free_slots(c, from, p->slots, &slot) != PCOLL_OK;
        bool enters = local == PCOLL_OK && !full;
        if (enters) {
            progress_lock(c->progress);
            local = communicator_register(c, p, slot);
            progress_unlock(c->progress);
            enters = local == PCOLL_OK;
        }
        uint64_t all[] = {0, slot, ~(uint64_t)slot, full};
        int rc = agree_outcome_with(c, local, all, 4);
        if (rc == PCOLL_OK && all[3])
            rc = fail(PCOLL_EINVAL,
                      "this communicator has no tags left for another one");
        else if (rc == PCOLL_OK && (all[1] > UINT32_MAX || all[1] < slot))
            rc = fail(PCOLL_EPROTOCOL, "the ranks agreed on slot %llu, with %u here",
                      (unsigned long long)all[1], slot);
        else if (rc == PCOLL_OK && all[1] == ~all[2] && all[1] == slot)
            return PCOLL_OK;
        if (enters) {
            progress_lock(c->progress);
            communicator_unregister(c, slot);
            progress_unlock(c->progress);
        }
        if (rc != PCOLL_OK)
            return rc;
        from = (uint32_t)all[1];
    }
}

/* Comparing arguments. */

const char *const agree_real[] = {NULL};

static const char *agree_show(const struct agree_field *field, uint64_t value,
                              char *text, size_t capacity)
{
    for (uint64_t i = 0; field->words && field->words[i]; i++)
        if (i == value)
            return field->words[i];
    double real;
    memcpy(&real, &value, sizeof real);
    if (field->words == agree_real)
        snprintf(text, capacity, "%g", real);
    else
        snprintf(text, capacity, "%" PRIu64, value);
    return text;
}

/* Write "4 on rank 0, 2; 5 on rank 1": the values in the order of their first rank. */
static void agree_list_values(const struct agree_field *field, const uint64_t *values,
                              const struct transport *t, char *out, size_t capacity)
{
    struct text text = {.at = out, .left = capacity};
    for (uint32_t i = 0; i < t->size && text.left > 1; i++) {
        char number[24];
        bool first = transport_lives(t, i);
        for (uint32_t j = 0; j < i; j++)
            first &= !transport_lives(t, j) || values[j] != values[i];
        if (!first)
            continue;
        text_add(&text, "%s%s on rank", text.items++ ? "; " : "",
                 agree_show(field, values[i], number, sizeof number));
        for (uint32_t j = i; j < t->size; j++)
            if (values[j] == values[i] && transport_lives(t, j))
                text_add(&text, "%s %u", j == i ? "" : ",", j);
    }
}

int agree_same(struct communicator *c, int local, const struct agree_field *fields,
               int count, uint64_t *more, int extra)
{
    struct reason reason;
    fail_reason(&reason);
    bool valid = local == PCOLL_OK;
    int compared = 2 * (count + 1);
    size_t bytes = (size_t)extra * sizeof *more;
    uint64_t *both = malloc((size_t)compared * sizeof *both + bytes);
    if (!both)
        return fail(PCOLL_ENOMEM, "no memory to compare %d arguments", count);
    /* The first value is `valid`. */
    for (int i = 0; i <= count; i++) {
        both[i] = i == 0 ? valid : valid ? fields[i - 1].value : 0;
        both[count + 1 + i] = ~both[i];
    }
    if (extra)
        memcpy(both + compared, more, bytes);
    int rc = agree_max(c, both, compared + extra), wrong = 0;
    while (rc == PCOLL_OK && wrong <= count && both[wrong] == ~both[count + 1 + wrong])
        wrong++;
    if (extra)
        memcpy(more, both + compared, bytes);
    free(both);
    if (rc == PCOLL_OK && wrong == 0)
        rc = agree_refusals(c, !valid, &reason, PCOLL_EMISMATCH,
                            "the arguments of rank", "are not valid");
    else if (rc == PCOLL_OK && wrong <= count) {
        const struct agree_field *field = &fields[wrong - 1];
        uint64_t *values;
        char text[300] = "";
        rc = agree_gather(c, valid ? field->value : 0, &values);
        if (rc == PCOLL_OK) {
            agree_list_values(field, values, c->transport, text, sizeof text);
            rc = fail(PCOLL_EMISMATCH, "the ranks disagree about %s: %s",
                      field->argument, text);
        }
        free(values);
    }
    return valid ? rc : fail(local, "%s", reason.text);
}
