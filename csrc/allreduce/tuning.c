/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of algorithms (see tuning.h), and complete rounds: MPI's or ours? The functions for these
 * and what they promise are in include/partialcoll.h, the measured limits in docs/interposer.md.
 */
#include "allreduce/tuning.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/doorbell.h"
#include "base/error.h"
#include "base/file.h"
#include "base/random.h"

enum { TUNING_LINE_LENGTH = 1024, TUNING_PATH_LENGTH = 4096 };
enum { TUNING_OURS = -2 }; /* In place of an algorithm. */

struct tuning_line {
    uint64_t ranks, bytes;
    int algorithm;
};

/* Measured. The ring sends what Rabenseifner's algorithm sends, in more steps and copies, but
 * never stops sending. */
static const struct tuning_line tuning_near[] = {
    {1, 0, PCOLL_ALGORITHM_RECDBL}, {1, 128 << 10, PCOLL_ALGORITHM_RABENSEIFNER}};
static const struct tuning_line tuning_far[] = {
    {1, 0, PCOLL_ALGORITHM_RECDBL},
    {1, 32 << 10, PCOLL_ALGORITHM_RABENSEIFNER},
    {1, 256 << 10, PCOLL_ALGORITHM_RING}};

/* The best line for a job among the lines read so far, or (facts) the lines "ours" among them. */
struct tuning_search {
    uint64_t ranks, bytes;
    struct tuning_line best;
    bool found;
    pcoll_full_facts *facts;
};

/* Return 1 if a line for `a` ranks serves a job of `ranks` better than a line for `b` ranks, -1
 * if it is the other way round, 0 if a == b. */
static int tuning_compare_ranks(uint64_t ranks, uint64_t a, uint64_t b)
{
    bool has_a = a <= ranks, has_b = b <= ranks;
    if (a == b)
        return 0;
    if (has_a != has_b)
        return has_a ? 1 : -1;
    return (a > b) == has_a ? 1 : -1;
}

static void tuning_consider(struct tuning_search *s, const struct tuning_line *line)
{
    if (line->algorithm == TUNING_OURS) {
        if (s->facts && s->facts->lines < PCOLL_FULL_LINES) {
            s->facts->line_ranks[s->facts->lines] = line->ranks;
            s->facts->line_bytes[s->facts->lines++] = line->bytes;
        }
        return;
    }
    int better =
        s->found ? tuning_compare_ranks(s->ranks, line->ranks, s->best.ranks) : 1;
    bool fits = line->bytes <= s->bytes;
    bool best_fits = s->found && s->best.bytes <= s->bytes;
    if (better == 0)
        better = fits && (!best_fits || line->bytes >= s->best.bytes) ? 1 : -1;
    if (better > 0)
        s->best = *line;
    s->found = true;
}

static bool tuning_read_number(const char *word, uint64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoull(word, &end, 10);
    return *word >= '0' && *word <= '9' && !*end && !errno;
}

static bool tuning_read_line(char *text, struct tuning_line *line)
{
    static const char spaces[] = " \t\r\n";
    char *rest;
    const char *ranks = strtok_r(text, spaces, &rest);
    const char *bytes = strtok_r(NULL, spaces, &rest);
    const char *name = strtok_r(NULL, spaces, &rest);
    if (!name || strtok_r(NULL, spaces, &rest))
        return false;
    bool ours = !strcmp(name, "ours"), never = ours && !strcmp(bytes, "never");
    line->algorithm = ours ? TUNING_OURS : algorithm_by_name(name);
    line->bytes = UINT64_MAX;
    return tuning_read_number(ranks, &line->ranks) && line->ranks > 0 &&
           (never || tuning_read_number(bytes, &line->bytes)) &&
           (ours || line->algorithm > PCOLL_ALGORITHM_AUTO);
}

static int tuning_read_table(FILE *in, const char *path, struct tuning_search *s)
{
    char text[TUNING_LINE_LENGTH], shown[TUNING_LINE_LENGTH];
    for (int number = 1; fgets(text, sizeof text, in); number++) {
        struct tuning_line line;
        bool whole = strchr(text, '\n') || feof(in);
        snprintf(shown, sizeof shown, "%.*s", (int)strcspn(text, "\n"), text);
        text[strcspn(text, "#")] = 0;
        if (whole && !text[strspn(text, " \t\r\n")])
            continue;
        if (!whole || !tuning_read_line(text, &line))
            return fail(PCOLL_EINVAL,
                        "algorithm table %s, line %d: expected ranks, bytes and an "
                        "algorithm, got \"%s\"",
                        path, number, shown);
        tuning_consider(s, &line);
    }
    if (ferror(in))
        return fail(PCOLL_EINVAL, "algorithm table %s: %s", path, strerror(errno));
    return PCOLL_OK;
}

/* Store the path of the file, or an empty string if there is none to look for. */
int pcoll_tuning_path(char *path, uint64_t capacity)
{
    int rc = fail_if_null(path);
    const char *wanted = environment_get("PARTIALCOLL_TUNE");
    const char *config = environment_get("XDG_CONFIG_HOME");
    const char *home = environment_get("HOME");
    if (rc != PCOLL_OK)
        return rc;
    if (wanted)
        snprintf(path, capacity, "%s", wanted);
    else if (config)
        snprintf(path, capacity, "%s/partialcoll/tune.txt", config);
    else if (home)
        snprintf(path, capacity, "%s/.config/partialcoll/tune.txt", home);
    else if (capacity)
        *path = 0;
    return PCOLL_OK;
}

/* A file that the user names must exist. The default file need not. */
static int tuning_search_file(struct tuning_search *s)
{
    char path[TUNING_PATH_LENGTH];
    pcoll_tuning_path(path, sizeof path);
    if (!*path || !strcmp(path, "none"))
        return PCOLL_OK;
    FILE *in = fopen(path, "r");
    if (!in && environment_get("PARTIALCOLL_TUNE"))
        return fail(PCOLL_EINVAL, "algorithm table %s (from PARTIALCOLL_TUNE): %s",
                    path, strerror(errno));
    if (!in)
        return PCOLL_OK;
    int rc = tuning_read_table(in, path, s);
    fclose(in);
    return rc;
}

int tuning_choose(const struct placement *placement, uint64_t bytes, bool off_node,
                  enum pcoll_algorithm *algorithm)
{
    uint32_t endpoints = placement->domains;
    struct tuning_search s = {.ranks = endpoints, .bytes = bytes};
    int rc = tuning_search_file(&s);
    if (rc != PCOLL_OK)
        return rc;
    /* If several endpoints share the link of their host, and the number of endpoints is a power of
     * two, Rabenseifner's algorithm sends the fewest bytes through the link at any size: each
     * endpoint halves with endpoints of its host first, and exchanges only the slice that it still
     * owns with other hosts. So the ring is not used on a shared link. */
    bool shared =
        placement->per_host > 1 && largest_power_of_two(endpoints) == endpoints;
    const struct tuning_line *lines = off_node ? tuning_far : tuning_near;
    int count = s.found ? 0 : off_node && !shared ? 3 : 2;
    for (int i = 0; i < count; i++)
        tuning_consider(&s, &lines[i]);
    *algorithm = s.best.bytes <= bytes ? (enum pcoll_algorithm)s.best.algorithm
                                       : PCOLL_ALGORITHM_RECDBL;
    return PCOLL_OK;
}

/*
 * Complete rounds. Ranks compare a number by combining it and its complement with OR: the two results
 * are complements of each other only if the number is the same on all ranks.
 */

enum { NODE, OTHER_NODES, TABLE, OTHER_TABLES, MULTIPLE, CORES };
_Static_assert((PCOLL_FULL_WORDS - CORES) * 8 == sizeof(cpu_set_t), "cores fit");

/* Estimated cost of a handle, and what a call saves, in nanoseconds. */
enum { FIRST_HANDLE_NS = 15000000, NEXT_HANDLE_NS = 1000000 };
enum { CROWDED_SAVING_NS = 10000, TABLE_SAVING_NS = 1000, BYTES_PER_SAVED_NS = 8 };
enum { SPINS_SAVING_NS = 3000000, SPINS_SAVING_NS_PER_BYTE = 500 };

int pcoll_full_look(int32_t open_mpi, int32_t multiple, pcoll_full_facts *f)
{
    struct tuning_search table = {.facts = f};
    cpu_set_t cores;
    uint64_t hash = 0;
    int rc = fail_if_null_as("facts", f);
    if (rc != PCOLL_OK)
        return rc;
    *f = (pcoll_full_facts){.open_mpi = open_mpi != 0};
    rc = tuning_search_file(&table);
    if (rc != PCOLL_OK)
        f->lines = 0;
    for (uint32_t i = 0; i < f->lines; i++)
        hash = splitmix_mix(splitmix_mix(hash ^ f->line_ranks[i]) ^ f->line_bytes[i]);
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    memcpy(f->words + CORES, &cores, sizeof cores);
    f->words[NODE] = doorbell_neighborhood();
    f->words[OTHER_NODES] = ~f->words[NODE];
    f->words[TABLE] = hash;
    f->words[OTHER_TABLES] = ~hash;
    f->words[MULTIPLE] = multiple != 0;
    return rc;
}

void pcoll_full_settle(pcoll_full_facts *f, uint32_t ranks)
{
    cpu_set_t cores;
    if (fail_if_null_as("facts", f))
        return;
    memcpy(&cores, f->words + CORES, sizeof cores);
    f->one_node = f->words[NODE] == ~f->words[OTHER_NODES];
    f->crowded = ranks > (uint32_t)CPU_COUNT(&cores);
    f->spins = f->crowded && !f->open_mpi && !f->words[MULTIPLE];
    f->tables_differ = f->words[TABLE] != ~f->words[OTHER_TABLES];
    if (f->tables_differ)
        f->lines = 0;
}

uint64_t pcoll_full_from(const pcoll_full_facts *f, uint32_t ranks)
{
    if (fail_if_null_as("facts", f) || ranks < 2)
        return UINT64_MAX;
    uint32_t best = 0;
    for (uint32_t i = 1; i < f->lines; i++)
        if (tuning_compare_ranks(ranks, f->line_ranks[i], f->line_ranks[best]) > 0)
            best = i;
    if (f->lines)
        return f->line_bytes[best];
    if (!f->one_node)
        return UINT64_MAX;
    if (f->spins)
        return 1;
    if (f->crowded && ranks > 3)
        return f->open_mpi ? 4096 : 1;
    if (ranks == 2)
        return f->open_mpi ? 64 << 10 : 256 << 10;
    return f->crowded ? 16384 : UINT64_MAX;
}

int pcoll_full_pays(const pcoll_full_facts *f, uint32_t ranks, uint64_t bytes,
                    int32_t has_handles, uint64_t *saved)
{
    int rc = fail_if_null_as("facts, saved", f, saved);
    if (rc != PCOLL_OK || bytes < pcoll_full_from(f, ranks))
        return rc;
    *saved += bytes / BYTES_PER_SAVED_NS;
    if (f->spins)
        *saved += SPINS_SAVING_NS + bytes * SPINS_SAVING_NS_PER_BYTE;
    else if (f->crowded && ranks > 3)
        *saved += CROWDED_SAVING_NS;
    if (f->lines)
        *saved += TABLE_SAVING_NS;
    return *saved >= (has_handles ? NEXT_HANDLE_NS : FIRST_HANDLE_NS);
}
