/* SPDX-License-Identifier: Apache-2.0 */
/* The table of algorithms; see tuning.h. */
#include "allreduce/tuning.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/file.h"
#include "base/error.h"

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

/* The best line for a job among the lines read so far, or the thresholds among them. */
struct tuning_search {
    uint64_t ranks, bytes;
    struct tuning_line best;
    bool found;
    struct tuning_threshold *thresholds;
    uint32_t most, count;
};

int tuning_compare_ranks(uint64_t ranks, uint64_t a, uint64_t b)
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
        if (s->thresholds && s->count < s->most)
            s->thresholds[s->count++] =
                (struct tuning_threshold){line->ranks, line->bytes};
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

/* Where several endpoints share the link of their host, and the number of endpoints is a power
 * of two, Rabenseifner's algorithm sends the least through the link at any size: each endpoint
 * halves with those of its host first, and exchanges only what it still owns with other hosts. */
static void tuning_search_built_in(struct tuning_search *s,
                                   const struct placement *placement, bool off_node)
{
    uint32_t endpoints = placement->domains;
    bool shared =
        placement->per_host > 1 && largest_power_of_two(endpoints) == endpoints;
    const struct tuning_line *lines = off_node ? tuning_far : tuning_near;
    int count = off_node && !shared ? 3 : 2; /* A shared link does without the ring. */
    for (int i = 0; i < count; i++)
        tuning_consider(s, &lines[i]);
}

int tuning_choose(const struct placement *placement, uint64_t bytes, bool off_node,
                  enum pcoll_algorithm *algorithm)
{
    struct tuning_search s = {.ranks = placement->domains, .bytes = bytes};
    int rc = tuning_search_file(&s);
    if (rc != PCOLL_OK)
        return rc;
    if (!s.found)
        tuning_search_built_in(&s, placement, off_node);
    *algorithm = s.best.bytes <= bytes ? (enum pcoll_algorithm)s.best.algorithm
                                       : PCOLL_ALGORITHM_RECDBL;
    return PCOLL_OK;
}

int tuning_thresholds(struct tuning_threshold *thresholds, uint32_t most,
                      uint32_t *count)
{
    struct tuning_search s = {.thresholds = thresholds, .most = most};
    int rc = tuning_search_file(&s);
    *count = rc == PCOLL_OK ? s.count : 0;
    return rc;
}
