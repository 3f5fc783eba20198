/* SPDX-License-Identifier: Apache-2.0 */
#include "allreduce/event_log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/error.h"
#include "base/lock.h"
#include "schedule/sched.h"

enum { PATH_LENGTH = 4096, NAME_LENGTH = 80 };

static const char last_line[] = "end";

struct event_log_numbers {
    uint64_t *at;
    uint32_t count, capacity;
};

static const char *const event_log_words[LOGGED_KINDS] = {
    [LOGGED_ROUND] = "round", [LOGGED_READ] = "read", [LOGGED_CALL] = "call"};

struct event_log {
    char folder[PATH_LENGTH]; /* Folder of the record, for messages. */
    char name[NAME_LENGTH];
    int record;          /* File descriptor, or -1. */
    struct lock lock;    /* Orders events and activations. */
    uint64_t events;     /* Events of this rank. Under the lock. */
    _Atomic bool broken; /* A write has failed: nothing more is written. */
    bool incomplete;     /* The record that is replayed has no last line. */
    uint64_t limit; /* Rounds to replay. UINT64_MAX: all, every record is complete. */
    struct event_log_numbers replay[LOGGED_KINDS]; /* Each list never decreases. */
};

/* A record that cannot be written. */

static _Atomic bool event_log_failed; /* A record of this process. */
static pid_t event_log_process;       /* Process that asked for the status, or 0. */

static void event_log_end_process(int status, void *unused)
{
    (void)unused;
    if (status != 0 || getpid() != event_log_process || !atomic_load(&event_log_failed))
        return;
    fflush(NULL);
    _exit(1);
}

int pcoll_record_status(void)
{
    if (!event_log_process && on_exit(event_log_end_process, NULL) == 0)
        event_log_process = getpid();
    return PCOLL_OK;
}

/* Stop recording. The run goes on. */
static void event_log_break(struct event_log *log, const char *why)
{
    if (atomic_exchange(&log->broken, true) || atomic_exchange(&event_log_failed, true))
        return;
    fprintf(stderr,
            "partialcoll: PARTIALCOLL_RECORD: %s/%s: %s. The record is incomplete; the "
            "run goes on\n",
            log->folder, log->name, why);
}

/* Write the line by one call: the driver and the application may both write. */
static void event_log_write(struct event_log *log, const char *text)
{
    const char *why;
    char line[128];
    int length = snprintf(line, sizeof line, "%s\n", text);
    if (!atomic_load(&log->broken) &&
        !file_write(log->record, line, (size_t)length, &why))
        event_log_break(log, why);
}

/* Reading. */

static bool event_log_read_line(struct event_log *log, const char *line)
{
    char what[8], rest;
    uint64_t number;
    if (!log->incomplete)
        return false; /* The last line came before. */
    if (!strcmp(line, last_line)) {
        log->incomplete = false;
        return true;
    }
    if (sscanf(line, "%7s %" SCNu64 " %c", what, &number, &rest) != 2)
        return false;
    int kind = 0;
    while (kind < LOGGED_KINDS && strcmp(what, event_log_words[kind]) != 0)
        kind++;
    struct event_log_numbers *n = kind < LOGGED_KINDS ? &log->replay[kind] : NULL;
    if (!n || (n->count && number < n->at[n->count - 1]) ||
        !sched_make_room(&n->at, n->count, &n->capacity, sizeof *n->at))
        return false;
    n->at[n->count++] = number;
    return true;
}

/* Read a record. A torn line, which can only be the last one, is ignored. */
static int event_log_load(struct event_log *log, const char *path, const char *title)
{
    char line[128] = "the end of the file";
    bool right = false;
    FILE *in = fopen(path, "r");
    int number = 1;
    log->incomplete = true;
    for (; in && fgets(line, sizeof line, in); number++) {
        size_t length = strcspn(line, "\n");
        bool torn = !line[length] && feof(in);
        line[length] = 0;
        right =
            number == 1 ? !strcmp(line, title) : torn || event_log_read_line(log, line);
        if (!right)
            break;
    }
    int rc = PCOLL_OK;
    if (!in || ferror(in))
        rc = fail(PCOLL_EINVAL, "PARTIALCOLL_REPLAY: %s: %s", path, strerror(errno));
    else if (!right)
        rc = fail(PCOLL_EINVAL,
                  "PARTIALCOLL_REPLAY: %s, line %d: expected \"%s\", got \"%s\"", path,
                  number, number == 1 ? title : "round, read or call N, or end", line);
    if (in)
        fclose(in);
    return rc;
}

/* Writing. */

static int event_log_begin_record(struct event_log *log, const char *title)
{
    const char *why;
    bool full = false;
    int folder = file_open_folder(log->folder, true, &why);
    if (folder < 0)
        return fail(PCOLL_EINVAL, "PARTIALCOLL_RECORD: %s: %s", log->folder, why);
    log->record = file_create(folder, log->name, &full, &why);
    close(folder);
    if (log->record < 0 && !full)
        return fail(PCOLL_EINVAL, "PARTIALCOLL_RECORD: %s/%s: %s", log->folder,
                    log->name, why);
    if (log->record < 0) {
        event_log_break(log, why);
        return PCOLL_OK;
    }
    event_log_write(log, title);
    return PCOLL_OK;
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
    char path[PATH_LENGTH + NAME_LENGTH], title[80];
    *out = NULL;
    if (!event_log_wanted())
        return PCOLL_OK;
    struct event_log *log = calloc(1, sizeof *log);
    if (!log)
        return fail(PCOLL_ENOMEM, "no memory for a record of arrivals");
    lock_init(&log->lock, LOCK_EVENTS);
    log->record = -1;
    log->limit = UINT64_MAX;
    snprintf(title, sizeof title,
             "partialcoll arrivals 1, rank %" PRIu32 " of %" PRIu32, rank, ranks);
    snprintf(log->name, sizeof log->name, "handle-%" PRIu64 "-rank-%" PRIu32 ".txt",
             number, rank);
    int rc = PCOLL_OK;
    if (replay) {
        snprintf(path, sizeof path, "%s/%s", replay, log->name);
        rc = event_log_load(log, path, title);
    }
    if (record && rc == PCOLL_OK) {
        snprintf(log->folder, sizeof log->folder, "%s", record);
        rc = event_log_begin_record(log, title);
    }
    if (log->incomplete)
        log->limit = log->replay[LOGGED_ROUND].count;
    if (rc != PCOLL_OK)
        event_log_close(&log);
    *out = log;
    return rc;
}

void event_log_close(struct event_log **at)
{
    struct event_log *log = *at;
    const char *why;
    if (!log)
        return;
    if (log->record >= 0) {
        event_log_write(log, last_line);
        if (!file_close(log->record, &why))
            event_log_break(log, why);
    }
    for (int kind = 0; kind < LOGGED_KINDS; kind++)
        free(log->replay[kind].at);
    lock_destroy(&log->lock);
    free(log);
    *at = NULL;
}

void event_log_note(struct event_log *log, enum event_log_kind kind, uint64_t number)
{
    char line[32];
    if (log->record < 0)
        return;
    snprintf(line, sizeof line, "%s %" PRIu64, event_log_words[kind], number);
    event_log_write(log, line);
}

void event_log_enter(struct event_log *log)
{
    lock_take(&log->lock);
}

void event_log_leave(struct event_log *log, uint64_t events)
{
    log->events = events;
    lock_release(&log->lock);
}

void event_log_leave_round(struct event_log *log)
{
    event_log_note(log, LOGGED_ROUND, log->events);
    lock_release(&log->lock);
}

/* Replaying. */

uint64_t *event_log_limit(struct event_log *log)
{
    return &log->limit;
}

bool event_log_has_ended(const struct event_log *log, uint64_t complete)
{
    return log && complete >= log->limit;
}

int event_log_end_error(const struct event_log *log)
{
    return fail(PCOLL_ESTATE,
                "PARTIALCOLL_REPLAY: the record is incomplete and ends before round "
                "%" PRIu64 ": the run that it is of was killed, or its disk was full. "
                "The replay ends here",
                log->limit);
}

/* Return number i of this kind, or UINT64_MAX without a replay and after its end. */
static uint64_t event_log_replayed(const struct event_log *log,
                                   enum event_log_kind kind, uint64_t i)
{
    const struct event_log_numbers *n = log ? &log->replay[kind] : NULL;
    return n && i < n->count ? n->at[i] : UINT64_MAX;
}

bool event_log_admits_round(struct event_log *log, uint64_t round)
{
    if (!log)
        return true;
    uint64_t least = event_log_replayed(log, LOGGED_ROUND, round);
    lock_take(&log->lock);
    bool enough = least == UINT64_MAX || log->events >= least;
    lock_release(&log->lock);
    return enough && !event_log_has_ended(log, round);
}

bool event_log_admits_event(const struct event_log *log, const struct member *m)
{
    return event_log_has_ended(log, m->frozen) ||
           m->events + 1 <= event_log_replayed(log, LOGGED_ROUND, m->frozen);
}

bool event_log_admits_read(const struct event_log *log, const struct member *m)
{
    uint64_t least = event_log_replayed(log, LOGGED_READ, m->stats.delivered);
    return least == UINT64_MAX || m->complete >= least;
}

bool event_log_holds_read(const struct event_log *log, const struct member *m,
                          uint64_t last, uint64_t *horizon)
{
    if (!log || m->deliver == PCOLL_DELIVER_ONE || m->delivered > last)
        return false;
    *horizon = event_log_replayed(log, LOGGED_READ, m->stats.delivered);
    return true;
}

bool event_log_ends_call(const struct event_log *log, const struct member *m)
{
    uint64_t least = event_log_replayed(log, LOGGED_CALL, m->calls);
    if (m->deliver == PCOLL_DELIVER_ALL) {
        bool unknown =
            log && log->incomplete && m->calls >= log->replay[LOGGED_CALL].count;
        if (unknown || !event_log_admits_read(log, m))
            return false;
    }
    return m->joining || least == UINT64_MAX || m->complete >= least;
}

uint64_t event_log_visible_rounds(const struct event_log *log, const struct member *m)
{
    CHECK(member_counts_hold(m));
    uint64_t most = event_log_replayed(log, LOGGED_CALL, m->calls);
    return m->complete < most ? m->complete : most;
}
