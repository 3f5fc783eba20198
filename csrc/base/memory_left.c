/* SPDX-License-Identifier: Apache-2.0 */
/* See memory_left.h. */
#include "base/memory_left.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* The files of a control group's folder. What only caches files is given back before anybody
 * is killed for memory, and counts as used there. */
struct version {
    const char *folder, *limit, *used, *cached;
};
static const struct version unified = {"", "memory.max", "memory.current",
                                       "inactive_file %llu"},
                            first = {"/memory", "memory.limit_in_bytes",
                                     "memory.usage_in_bytes",
                                     "total_inactive_file %llu"};

/* In the first line of this form; UINT64_MAX: in none, or there is no file. */
static uint64_t memory_read_number(const char *folder, const char *name,
                                   const char *format)
{
    char path[PATH_MAX], line[128];
    unsigned long long value;
    uint64_t found = UINT64_MAX;
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = length < (int)sizeof path ? fopen(path, "r") : NULL;
    while (f && found == UINT64_MAX && fgets(line, sizeof line, f))
        if (sscanf(line, format, &value) == 1)
            found = value;
    if (f)
        fclose(f);
    return found;
}

static uint64_t memory_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t memory_left_in(const struct version *v, const char *folder)
{
    uint64_t limit = memory_read_number(folder, v->limit, "%llu");
    uint64_t used = memory_read_number(folder, v->used, "%llu");
    uint64_t cached = memory_read_number(folder, "memory.stat", v->cached);
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    if (cached != UINT64_MAX)
        used -= memory_least(cached, used);
    return limit - memory_least(used, limit);
}

/* Of a group and of all that it lies in. */
static uint64_t memory_left_from(const struct version *v, const char *mount,
                                 const char *own)
{
    char folder[PATH_MAX];
    uint64_t left = UINT64_MAX;
    size_t root = strlen(mount) + strlen(v->folder);
    int length = snprintf(folder, sizeof folder, "%s%s%s", mount, v->folder, own);
    if (length >= (int)sizeof folder)
        return left;
    while (strlen(folder) >= root) {
        left = memory_least(left, memory_left_in(v, folder));
        char *slash = strrchr(folder + root, '/');
        if (!slash)
            break;
        *slash = 0;
    }
    return left;
}

/* "memory" among names with commas between. */
static bool memory_is_controlled(const char *names)
{
    for (const char *at = names; (at = strstr(at, "memory")); at++)
        if ((at == names || at[-1] == ',') && (at[6] == ',' || !at[6]))
            return true;
    return false;
}

uint64_t memory_left_in_groups(const char *groups, const char *mount)
{
    CHECK(groups && mount);
    char line[PATH_MAX];
    uint64_t left = UINT64_MAX;
    FILE *f = fopen(groups, "r");
    while (f && fgets(line, sizeof line, f)) { /* number:controllers:group */
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *own = names ? strchr(names + 1, ':') : NULL;
        if (!own)
            continue;
        *own++ = 0;
        if (!*++names)
            left = memory_least(left, memory_left_from(&unified, mount, own));
        else if (memory_is_controlled(names))
            left = memory_least(left, memory_left_from(&first, mount, own));
    }
    if (f)
        fclose(f);
    return left;
}

uint64_t memory_left(void)
{
    uint64_t machine = memory_read_number("/proc", "meminfo", "MemAvailable: %llu kB");
    machine = machine == UINT64_MAX ? machine : machine * 1024;
    return memory_least(machine,
                        memory_left_in_groups("/proc/self/cgroup", "/sys/fs/cgroup"));
}
