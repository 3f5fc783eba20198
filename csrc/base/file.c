/* SPDX-License-Identifier: Apache-2.0 */
/* See file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *file_reason(void)
{
    return errno == ELOOP ? "it is a link, which is not followed" : strerror(errno);
}

/* Read owner and type. The stat functions would need glibc 2.33. */
static bool file_look_up(int folder, const char *name, int flags, struct statx *s)
{
    return statx(folder, name, flags, STATX_UID | STATX_TYPE, s) == 0;
}

/* Keep the descriptor if it belongs to this user. */
static int file_keep_own(int fd, const char **why)
{
    struct statx s;
    bool known = fd >= 0 && file_look_up(fd, "", AT_EMPTY_PATH, &s);
    if (known && s.stx_uid == geteuid())
        return fd;
    *why = known ? "it belongs to another user" : file_reason();
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Another user could have the link lead into any folder of this user. */
static bool file_is_link_of_another(const char *path)
{
    struct statx s;
    return file_look_up(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &s) &&
           S_ISLNK(s.stx_mode) && s.stx_uid != geteuid() && s.stx_uid != 0;
}

int file_open_folder(const char *path, bool make, const char **why)
{
    if (make)
        mkdir(path, 0700); /* if it exists, its owner decides */
    if (file_is_link_of_another(path)) {
        *why = "it is a link of another user";
        return -1;
    }
    return file_keep_own(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), why);
}

/* Remove a file of this user, so that one of its name can be made. */
static bool file_remove_own(int folder, const char *name)
{
    struct statx s;
    return file_look_up(folder, name, AT_SYMLINK_NOFOLLOW, &s) && S_ISREG(s.stx_mode) &&
           s.stx_uid == geteuid() && unlinkat(folder, name, 0) == 0;
}

int file_create(int folder, const char *name, bool *full, const char **why)
{
    int flags = O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(folder, name, flags, 0600);
    if (fd < 0 && errno == EEXIST && file_remove_own(folder, name))
        fd = openat(folder, name, flags, 0600);
    *full = fd < 0 && (errno == ENOSPC || errno == EDQUOT);
    if (fd < 0)
        *why = errno == EEXIST ? "it exists and is not a file of this user"
                               : file_reason();
    return fd;
}

int file_open(int folder, const char *name, int flags, const char **why)
{
    return file_keep_own(
        openat(folder, name, flags | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC), why);
}

bool file_write(int fd, const void *data, size_t bytes, const char **why)
{
    const char *at = data;
    while (bytes) {
        ssize_t written = write(fd, at, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            *why = written ? file_reason() : strerror(ENOSPC);
            return false;
        }
        at += written;
        bytes -= (size_t)written;
    }
    return true;
}

bool file_close(int fd, const char **why)
{
    if (close(fd) == 0 || errno == EINTR)
        return true;
    *why = file_reason();
    return false;
}
