/* SPDX-License-Identifier: Apache-2.0 */
/* See job.h. */
#include "runtime/job.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/file.h"

/* To the command, until this process ends; -1: none. By the thread that begins, or ends,
 * what the process has once. */
static int job_connection = -1;

static void job_say(const char *line)
{
    if (job_connection >= 0)
        send(job_connection, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void job_connect(const char *folder, uint32_t rank)
{
    char line[32];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int length = snprintf(to.sun_path, sizeof to.sun_path, "%s/ranks", folder);
    if (length < 0 || (size_t)length >= sizeof to.sun_path)
        return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return;
    }
    job_connection = fd;
    snprintf(line, sizeof line, "begin %" PRIu32 "\n", rank);
    job_say(line);
}

/* The descriptor stays open, and the lock held, until the process ends. */
static void job_hold_lock(int folder)
{
    const char *why;
    int lock = file_open(folder, "lock", O_RDONLY, &why);
    if (lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) != 0)
        close(lock);
}

void job_begin(uint32_t rank)
{
    const char *why, *path = environment_get("PARTIALCOLL_JOB");
    int folder = path ? file_open_folder(path, false, &why) : -1;
    if (folder < 0)
        return;
    job_hold_lock(folder);
    job_connect(path, rank);
    close(folder);
}

void job_end(void)
{
    job_say("end\n");
}
