/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes of one machine share: an anonymous memory file. The process that makes
 * it keeps it open until the others have opened it through /proc. It has no name, so a job that
 * crashes leaves nothing behind, no old file can be mistaken for it, and neither the size of
 * /dev/shm nor the number of MPI windows limits it. Its first word identifies its maker,
 * because the process id may have been reused.
 */
#ifndef PCOLL_DOMAIN_SEGMENT_H
#define PCOLL_DOMAIN_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

struct segment {
    void *memory; /* initially zeros, on a page boundary; NULL: none */
    size_t bytes;
    int fd; /* -1 after segment_sealed */
};

/* Make a segment. PCOLL_ENOMEM says how much is needed and how much is left. */
int segment_create(size_t bytes, uint64_t cookie, struct segment *s);
/* Open the segment that process pid has open as fd. PCOLL_ENOMEM. */
int segment_open(uint64_t pid, uint64_t fd, size_t bytes, uint64_t cookie,
                 struct segment *s);
/* Close the file: all processes have opened it. */
void segment_sealed(struct segment *s);
/* Allocate and map these bytes now, near the caller, so that later accesses cannot fail.
 * PCOLL_ENOMEM. */
int segment_reserve(struct segment *s, size_t offset, size_t bytes);
void segment_close(struct segment *s);

#endif
