/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing arguments by maxima: the maximum of x and of ~x tell whether all x are
 * equal; the maximum of vectors that are zero but for one's own element gathers them.
 */
#include "runtime/agreement.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/text.h"

enum { NAME_LENGTH = 24 };

static const char *show(const struct agree_field *field, uint64_t value, char *text,
                        size_t capacity)
{
    const char *const *words = field->values;
    for (uint64_t i = 0; words && words[i]; i++)
        if (i == value)
            return words[i];
    double real;
    memcpy(&real, &value, sizeof real);
    if (field->real)
        snprintf(text, capacity, "%g", real);
    else
        snprintf(text, capacity, "%" PRIu64, value);
    return text;
}

/* "4 on rank 0, 2; 5 on rank 1": the values in the order of their first rank. */
static void list_values(const struct agree_field *field, const uint64_t *values,
                        const struct transport *t, char *out, size_t capacity)
{
    struct text text = {.at = out, .left = capacity};
    uint32_t ranks = t->size;
    bool *listed = calloc(ranks, sizeof *listed);
    for (uint32_t i = 0; listed && i < ranks; i++)
        listed[i] = !transport_lives(t, i);
    for (uint32_t i = 0; listed && i < ranks && text.left > 1; i++) {
        char number[NAME_LENGTH];
        if (listed[i])
            continue;
        text_add(&text, "%s%s on rank", text.items++ ? "; " : "",
                 show(field, values[i], number, sizeof number));
        for (uint32_t j = i; j < ranks; j++) {
            if (values[j] != values[i])
                continue;
            listed[j] = true;
            text_add(&text, "%s %u", j == i ? "" : ",", j);
        }
    }
    free(listed);
}

static int report(struct communicator *c, const struct agree_field *field, uint64_t own)
{
    uint64_t *values;
    char text[300] = "";
    int rc = agree_gather(c, own, &values);
    if (rc == PCOLL_OK) {
        list_values(field, values, c->transport, text, sizeof text);
        rc = fail(PCOLL_EMISMATCH, "the ranks disagree about %s: %s", field->argument,
                  text);
    }
    free(values);
    return rc;
}

/* The first of all is whether they are valid. */
static int compare(struct communicator *c, bool valid, const struct reason *reason,
                   const struct agree_field *fields, const uint64_t *own, int count)
{
    uint64_t both[2 * (AGREE_FIELDS + 1)];
    for (int i = 0; i <= count; i++) {
        uint64_t value = i == 0 ? valid : valid ? own[i - 1] : 0;
        both[i] = value;
        both[count + 1 + i] = ~value;
    }
    int rc = agree_max(c, both, 2 * (count + 1));
    for (int i = 0; i <= count && rc == PCOLL_OK; i++)
        if (both[i] != ~both[count + 1 + i])
            rc = i == 0 ? agree_refusals(c, !valid, reason, PCOLL_EMISMATCH,
                                         "the arguments of rank", "are not valid")
                        : report(c, &fields[i - 1], valid ? own[i - 1] : 0);
    return rc;
}

int agree_same(struct communicator *c, int local, const struct agree_field *fields,
               const uint64_t *own, int count)
{
    CHECK(count > 0 && fields && own);
    struct reason reason;
    fail_reason(&reason);
    int rc = compare(c, local == PCOLL_OK, &reason, fields, own, count);
    return local == PCOLL_OK ? rc : fail(local, "%s", reason.text);
}
