/* SPDX-License-Identifier: Apache-2.0 */
#include "allreduce/tuning.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/environment.h"
#include "base/error.h"

enum { LINE_LENGTH = 1024, PATH_LENGTH = 4096 };
enum { OURS = -2 }; /* in place of an algorithm */

struct line {
    uint64_t ranks, bytes;
    int algorithm;
};

/* Measured: the ring sends what Rabenseifner's algorithm sends, in more steps and
 * copies, but never stops sending. */
static const struct line near[] = {{1, 0, PCOLL_ALGORITHM_RECDBL},
                                   {1, 128 << 10, PCOLL_ALGORITHM_RABENSEIFNER}};
static const struct line far[] = {{1, 0, PCOLL_ALGORITHM_RECDBL},
                                  {1, 32 << 10, PCOLL_ALGORITHM_RABENSEIFNER},
                                  {1, 256 << 10, PCOLL_ALGORITHM_RING}};
/* Where several endpoints share the link of their host, and all their numbers are powers
 * of two, Rabenseifner's algorithm sends the least through it: each endpoint halves with
 * those of its host first and exchanges only what it still owns with other hosts. */
static const struct line shared[] = {{1, 0, PCOLL_ALGORITHM_RECDBL},
                                     {1, 32 << 10, PCOLL_ALGORITHM_RABENSEIFNER}};

/* The best line for a job among those read so far, or the thresholds among them. */
struct search {
    uint64_t ranks, bytes;
    struct line best;
    bool found;
    struct tuning_threshold *thresholds;
    uint32_t most, count;
};

/* The more ranks that the job has, the better; those that it has not, only if there is
 * nothing else, and then the fewest. */
int tuning_compare_ranks(uint64_t ranks, uint64_t a, uint64_t b)
{
    bool has_a = a <= ranks, has_b = b <= ranks;
    if (a == b)
        return 0;
    if (has_a != has_b)
        return has_a ? 1 : -1;
    return (a > b) == has_a ? 1 : -1;
}

static void tuning_consider(struct search *s, const struct line *line)
{
    if (line->algorithm == OURS) {
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

static bool tuning_read_line(char *text, struct line *line)
{
    static const char spaces[] = " \t\r\n";
    char *rest;
    const char *ranks = strtok_r(text, spaces, &rest);
    const char *bytes = strtok_r(NULL, spaces, &rest);
    const char *name = strtok_r(NULL, spaces, &rest);
    if (!name || strtok_r(NULL, spaces, &rest))
        return false;
    bool ours = !strcmp(name, "ours"), never = ours && !strcmp(bytes, "never");
    line->algorithm = ours ? OURS : algorithm_by_name(name);
    line->bytes = UINT64_MAX;
    return tuning_read_number(ranks, &line->ranks) && line->ranks > 0 &&
           (never || tuning_read_number(bytes, &line->bytes)) &&
           (ours || line->algorithm > PCOLL_ALGORITHM_AUTO);
}

static bool tuning_is_blank(const char *text)
{
    return !text[strspn(text, " \t\r\n")];
}

static int tuning_read_table(FILE *in, const char *path, struct search *s)
{
    char text[LINE_LENGTH], shown[LINE_LENGTH];
    for (int number = 1; fgets(text, sizeof text, in); number++) {
        struct line line;
        bool whole = strchr(text, '\n') || feof(in);
        snprintf(shown, sizeof shown, "%.*s", (int)strcspn(text, "\n"), text);
        text[strcspn(text, "#")] = 0;
        if (whole && tuning_is_blank(text))
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

/* Empty: there is none to look for. */
int pcoll_tuning_path(char *path, uint64_t capacity)
{
    int rc = fail_if_null(path);
    const char *wanted = environment_get("PARTIALCOLL_TUNE");
    const char *config = environment_get("XDG_CONFIG_HOME"),
               *home = environment_get("HOME");
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

/* A file that the user names must be there; the usual one need not. */
static int tuning_search_file(struct search *s)
{
    char path[PATH_LENGTH];
    pcoll_tuning_path(path, sizeof path);
    if (!*path || !strcmp(path, "none"))
        return PCOLL_OK;
    const char *wanted = environment_get("PARTIALCOLL_TUNE");
    FILE *in = fopen(path, "r");
    if (!in && wanted)
        return fail(PCOLL_EINVAL, "algorithm table %s (from PARTIALCOLL_TUNE): %s",
                    path, strerror(errno));
    int rc = in ? tuning_read_table(in, path, s) : PCOLL_OK;
    if (in)
        fclose(in);
    return rc;
}

static void tuning_search_lines(struct search *s, const struct line *lines,
                                size_t count)
{
    for (size_t i = 0; i < count; i++)
        tuning_consider(s, &lines[i]);
}

static void tuning_search_built_in(struct search *s, const struct placement *placement,
                                   bool off_node)
{
    uint32_t endpoints = placement->domains;
    if (!off_node)
        tuning_search_lines(s, near, sizeof near / sizeof *near);
    else if (placement->per_host > 1 && largest_power_of_two(endpoints) == endpoints)
        tuning_search_lines(s, shared, sizeof shared / sizeof *shared);
    else
        tuning_search_lines(s, far, sizeof far / sizeof *far);
}

int tuning_choose(const struct placement *placement, uint64_t bytes, bool off_node,
                  enum pcoll_algorithm *algorithm)
{
    struct search s = {.ranks = placement->domains, .bytes = bytes};
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
    struct search s = {.thresholds = thresholds, .most = most};
    int rc = tuning_search_file(&s);
    *count = rc == PCOLL_OK ? s.count : 0;
    return rc;
}
