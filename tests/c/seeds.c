/* SPDX-License-Identifier: Apache-2.0 */
#include "seeds.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "space.h"

static struct world_options (*draw_world)(uint64_t seed);

static void run(uint64_t seed, struct space_tally *tally)
{
    struct world_options o = draw_world(seed);
    o.ranks = (uint32_t)check_setting("PARTIALCOLL_RANKS", o.ranks);
    EXPECT(o.ranks >= 1 && o.ranks <= LEDGER_MAX_RANKS, "PARTIALCOLL_RANKS: 1 to %d",
           LEDGER_MAX_RANKS);
    struct world_report report;
    space_describe(&o, check_context, sizeof check_context);
    world_run(&o, &report);
    space_count(tally, &o, &report);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void add(struct space_tally *sum, const struct space_tally *part)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)part;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += from[i];
}

/* Run every jobs-th seed in its own process. Return true if all seeds passed. */
static bool run_jobs(uint64_t first, uint64_t end, uint64_t jobs,
                     struct space_tally *sum)
{
    struct space_tally *parts = mmap(NULL, jobs * sizeof *parts, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(parts != MAP_FAILED, "no memory for %llu jobs", (unsigned long long)jobs);
    for (uint64_t j = 0; j < jobs; j++) {
        pid_t child = fork();
        EXPECT(child >= 0, "no process for job %llu", (unsigned long long)j);
        if (child)
            continue;
        for (uint64_t seed = first + j; seed < end; seed += jobs)
            run(seed, &parts[j]);
        exit(0);
    }
    bool held = true;
    for (uint64_t j = 0; j < jobs; j++) {
        int status;
        held = wait(&status) > 0 && status == 0 && held;
    }
    for (uint64_t j = 0; j < jobs; j++)
        add(sum, &parts[j]);
    munmap(parts, jobs * sizeof *parts);
    return held;
}

int seeds_run(struct world_options (*draw)(uint64_t seed), uint64_t schedules,
              void (*before)(void))
{
    static struct space_tally tally;
    draw_world = draw;
    uint64_t seed = check_setting("PARTIALCOLL_SEED", 0);
    if (seed) {
        run(seed, &tally);
        printf("%s\npassed\n", check_context);
        return 0;
    }
    uint64_t first = check_setting("PARTIALCOLL_FIRST", 1);
    uint64_t end = first + check_setting("PARTIALCOLL_SCHEDULES", schedules);
    uint64_t jobs = check_setting("PARTIALCOLL_JOBS", 1);
    if (before)
        before();
    double begin = seconds();
    if (jobs > 1 && !run_jobs(first, end, jobs, &tally))
        return 1;
    for (seed = first; jobs <= 1 && seed < end; seed++)
        run(seed, &tally);
    space_print(&tally, stdout);
    double elapsed = seconds() - begin;
    printf("%.1f s in %llu processes: %.0f rounds a second\n", elapsed,
           (unsigned long long)jobs, (double)tally.rounds / elapsed);
    return 0;
}
