/* SPDX-License-Identifier: Apache-2.0 */
/* See check.h. */
#include "base/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

void (*check_hook)(void);

_Noreturn void check_broken(const char *file, int line, const char *condition)
{
    fprintf(stderr, "invariant broken: check\n  %s:%d: %s\n", file, line, condition);
    if (check_hook)
        check_hook();
    abort();
}

/* Kill points. */

_Static_assert(sizeof(struct moments) == 4096, "the tests map one page");

static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static struct moments own; /* used without a file */
static struct moments *moments = &own;
static int wished = SIGKILL;
static _Thread_local struct thread_moment *here;

static void moment_read_settings(void)
{
    const char *wish = environment_get("PARTIALCOLL_DIE");
    const char *folder = environment_get("PARTIALCOLL_MOMENTS");
    const char *colon = wish ? strchr(wish, ':') : NULL;
    char path[4096];
    int fd = -1;
    if (folder) {
        snprintf(path, sizeof path, "%s/moments-%ld", folder, (long)getpid());
        fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    }
    if (fd >= 0 && ftruncate(fd, sizeof own) == 0) {
        void *page = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        moments = page == MAP_FAILED ? &own : page;
    }
    if (fd >= 0)
        close(fd);
    if (!colon || (size_t)(colon - wish) >= sizeof own.wish)
        return;
    memcpy(moments->wish, wish, (size_t)(colon - wish));
    wished = strstr(colon, ":stop") ? SIGSTOP : SIGKILL;
    atomic_store(&moments->left, atoi(colon + 1));
}

static void moment_note(const char *name)
{
    if (!here) {
        uint32_t thread = atomic_fetch_add(&moments->threads, 1);
        here = &moments->thread[thread < MOMENT_THREADS ? thread : MOMENT_THREADS - 1];
    }
    uint32_t next = atomic_load(&here->which) == 1;
    CHECK(strlen(name) < MOMENT_NAME);
    memcpy(here->name[next], name, strlen(name) + 1);
    here->number++;
    atomic_store(&here->which, next + 1);
}

void moment_pass(const char *name)
{
    pthread_once(&read_once, moment_read_settings);
    if (moments != &own)
        moment_note(name);
    if (atomic_load(&moments->left) <= 0 || strcmp(name, moments->wish))
        return;
    if (atomic_fetch_sub(&moments->left, 1) == 1) {
        atomic_store(&moments->died, clock_ns());
        raise(wished);
    }
}
