/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the library writes, and files of a job that it opens.
 *
 * Other users may be able to write to the folder, or may have made it first. Therefore the
 * folder and every file that is opened in it must belong to this user, links in it are not
 * followed, and a file is created only if it did not exist. Every write and the close can
 * fail (a full disk, a quota). On failure a function sets *why to the reason, a constant text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* Open a folder of this user; the path may be a link of this user's or root's. If `make` is set
 * and it does not exist, make it, readable by this user alone. Return a descriptor, or -1. */
int file_open_folder(const char *path, bool make, const char **why);

/* Create a file for appending. A file of this name that belongs to this user is replaced. Return
 * a descriptor, or -1. Sets *full if there is no room on the disk. */
int file_create(int folder, const char *name, bool *full, const char **why);

/* Open an existing file of this user with these flags of open(), without waiting for the other
 * end of a FIFO. Return a descriptor, or -1. */
int file_open(int folder, const char *name, int flags, const char **why);

/* Write all bytes. Return false on failure. */
bool file_write(int fd, const void *data, size_t bytes, const char **why);

/* Close the file. Return false if what was written may be lost. */
bool file_close(int fd, const char **why);

/*
 * Return the value of a variable, or NULL if it is not set, is empty, or must not be trusted: a
 * program with privileges that its caller lacks (set-user-id, set-group-id, file capabilities) must
 * not load a library or write a file that the caller's variables name. All of csrc reads the
 * environment through this function (tests/house/test_layers.py).
 */
static inline const char *environment_get(const char *name)
{
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}
