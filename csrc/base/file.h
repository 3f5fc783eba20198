/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the library writes, and those of a job that it opens.
 *
 * The folder may be one that other users can write to, or that another user has made
 * first. So the folder must belong to this user; what is opened in it must as well;
 * links in it are not followed; a file that is made did not exist before. Every write
 * and the close can fail (a full disk, a quota), and the caller has to look.
 *
 * On failure a function says why in *why, which the caller must not free.
 */
#ifndef PCOLL_BASE_FILE_H
#define PCOLL_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* Open a folder of this user; make it, for this user alone, if `make` is set and it does
 * not exist. Return a descriptor, or -1. */
int file_open_folder(const char *path, bool make, const char **why);

/* Make a file for appending. A file of this name that belongs to this user is replaced.
 * Return a descriptor, or -1 with *full set if there is no room on the disk. */
int file_create(int folder, const char *name, bool *full, const char **why);

/* Open what exists and belongs to this user, with these flags of open(); never wait for
 * the other end of a FIFO. Return a descriptor, or -1. */
int file_open(int folder, const char *name, int flags, const char **why);

/* Write all of it. */
bool file_write(int fd, const void *data, size_t bytes, const char **why);

/* Close it. */
bool file_close(int fd, const char **why);

#endif
