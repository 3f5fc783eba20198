/* SPDX-License-Identifier: Apache-2.0 */
#include "allreduce/event_log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/environment.h"
#include "base/error.h"

enum { PATH_LENGTH = 4096 };

struct numbers {
    uint64_t *at;
    size_t count, capacity;
};

static const char *const words[LOGGED_KINDS] = {
    [LOGGED_ROUND] = "round", [LOGGED_READ] = "read", [LOGGED_CALL] = "call"};

struct event_log {
    FILE *record;                        /* or NULL */
    struct numbers replay[LOGGED_KINDS]; /* none ever goes down */
};

static bool append(struct numbers *n, uint64_t number)
{
    if (n->count == n->capacity) {
        size_t capacity = n->capacity ? 2 * n->capacity : 256;
        uint64_t *bigger = realloc(n->at, capacity * sizeof *bigger);
        if (!bigger)
            return false;
        n->at = bigger;
        n->capacity = capacity;
    }
    n->at[n->count++] = number;
    return true;
}

static bool read_line(struct event_log *a, const char *line)
{
    char what[8], rest;
    uint64_t number;
    if (sscanf(line, "%7s %" SCNu64 " %c", what, &number, &rest) != 2)
        return false;
    int kind = 0;
    while (kind < LOGGED_KINDS && strcmp(what, words[kind]) != 0)
        kind++;
    struct numbers *n = kind < LOGGED_KINDS ? &a->replay[kind] : NULL;
    return n && (!n->count || number >= n->at[n->count - 1]) && append(n, number);
}

static int load(struct event_log *a, const char *path, const char *title)
{
    char line[128];
    FILE *in = fopen(path, "r");
    if (!in)
        return fail(PCOLL_EINVAL, "PARTIALCOLL_REPLAY: %s: %s", path, strerror(errno));
    int rc = PCOLL_OK, number = 1;
    for (; rc == PCOLL_OK && fgets(line, sizeof line, in); number++) {
        line[strcspn(line, "\n")] = 0;
        bool right = number == 1 ? !strcmp(line, title) : read_line(a, line);
        if (!right)
            rc =
                fail(PCOLL_EINVAL,
                     "PARTIALCOLL_REPLAY: %s, line %d: expected \"%s\", got \"%s\"",
                     path, number, number == 1 ? title : "round, read or call N", line);
    }
    fclose(in);
    if (rc == PCOLL_OK && number == 1)
        rc = fail(PCOLL_EINVAL,
                  "PARTIALCOLL_REPLAY: %s, line 1: expected \"%s\", got "
                  "the end of the file",
                  path, title);
    return rc;
}

static int begin_record(struct event_log *a, const char *folder, const char *path,
                        const char *title)
{
    mkdir(folder, 0777); /* it may be there; else the file cannot be written */
    a->record = fopen(path, "w");
    if (!a->record)
        return fail(PCOLL_EINVAL, "PARTIALCOLL_RECORD: %s: %s", path, strerror(errno));
    setvbuf(a->record, NULL, _IOLBF, 0); /* what a crash ends is still worth having */
    fprintf(a->record, "%s\n", title);
    return PCOLL_OK;
}

static void path_of(char *path, const char *folder, uint32_t rank, uint64_t number)
{
    snprintf(path, PATH_LENGTH, "%s/handle-%" PRIu64 "-rank-%" PRIu32 ".txt", folder,
             number, rank);
}

bool event_log_wanted(void)
{
    return environment_get("PARTIALCOLL_RECORD") ||
           environment_get("PARTIALCOLL_REPLAY");
}

int event_log_open(uint32_t rank, uint32_t ranks, uint64_t number,
                   struct event_log **out)
{
    const char *record = environment_get("PARTIALCOLL_RECORD");
    const char *replay = environment_get("PARTIALCOLL_REPLAY");
    char path[PATH_LENGTH], title[80];
    *out = NULL;
    if (!event_log_wanted())
        return PCOLL_OK;
    struct event_log *a = calloc(1, sizeof *a);
    if (!a)
        return fail(PCOLL_ENOMEM, "no memory for a record of arrivals");
    snprintf(title, sizeof title,
             "partialcoll arrivals 1, rank %" PRIu32 " of %" PRIu32, rank, ranks);
    int rc = PCOLL_OK;
    if (replay) {
        path_of(path, replay, rank, number);
        rc = load(a, path, title);
    }
    if (record && rc == PCOLL_OK) {
        path_of(path, record, rank, number);
        rc = begin_record(a, record, path, title);
    }
    if (rc != PCOLL_OK)
        event_log_close(&a);
    *out = a;
    return rc;
}

void event_log_close(struct event_log **at)
{
    struct event_log *a = *at;
    if (!a)
        return;
    if (a->record)
        fclose(a->record);
    for (int kind = 0; kind < LOGGED_KINDS; kind++)
        free(a->replay[kind].at);
    free(a);
    *at = NULL;
}

void event_log_note(struct event_log *a, enum event_log_kind kind, uint64_t number)
{
    if (a && a->record)
        fprintf(a->record, "%s %" PRIu64 "\n", words[kind], number);
}

/* UINT64_MAX without a replay, and after its end. */
static uint64_t replayed(const struct event_log *a, enum event_log_kind kind,
                         uint64_t i)
{
    const struct numbers *n = a ? &a->replay[kind] : NULL;
    return n && i < n->count ? n->at[i] : UINT64_MAX;
}

bool event_log_admit_round(const struct event_log *a, uint64_t round, uint64_t events)
{
    uint64_t least = replayed(a, LOGGED_ROUND, round);
    return least == UINT64_MAX || events >= least;
}

bool event_log_admit_event(const struct event_log *a, uint64_t event, uint64_t begun)
{
    return event <= replayed(a, LOGGED_ROUND, begun);
}

uint64_t event_log_delivered(const struct event_log *a, uint64_t call)
{
    return replayed(a, LOGGED_CALL, call);
}

uint64_t event_log_complete(const struct event_log *a, uint64_t read)
{
    return replayed(a, LOGGED_READ, read);
}
