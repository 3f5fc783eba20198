/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes of one machine share: an anonymous memory file, which the one
 * that makes it keeps open until the others have opened it through /proc. It has no
 * name, so nothing is left behind when a job crashes, nothing that was left can be
 * taken for it, and neither the size of /dev/shm nor the number of MPI windows limits
 * it. Its first word says whose it is: the process id could have been given away again.
 */
#ifndef PCOLL_DOMAIN_SEGMENT_H
#define PCOLL_DOMAIN_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

struct segment {
    void *memory; /* zeros at first, on a page boundary; NULL: none */
    size_t bytes;
    int fd; /* of its maker until segment_sealed, else -1 */
};

/* PCOLL_ENOMEM says how much is needed and how much there is. */
int segment_create(size_t bytes, uint64_t cookie, struct segment *s);
/* The segment that process pid holds as fd. PCOLL_ENOMEM. */
int segment_open(uint64_t pid, uint64_t fd, size_t bytes, uint64_t cookie,
                 struct segment *s);
/* All have opened it. */
void segment_sealed(struct segment *s);
/* Allocate and map the memory of these bytes now, near the caller, so that none can be
 * missing later. PCOLL_ENOMEM. */
int segment_reserve(struct segment *s, size_t offset, size_t bytes);
void segment_close(struct segment *s);

#endif
