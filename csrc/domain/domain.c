/* SPDX-License-Identifier: Apache-2.0 */
/* The form of a handle's messages, and segments; see domain.h. */
#include "domain/domain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"

static void round_shape_set_lengths(struct round_shape *shape)
{
    shape->message_bytes = shape->header_bytes + shape->payload.bytes;
    shape->slot_bytes = shape->message_bytes + shape->header_bytes;
}

int round_shape_init(struct round_shape *shape, uint32_t ranks,
                     const pcoll_buffer *buffers, int nbuffers,
                     user_reduction_fn *make_user)
{
    *shape =
        (struct round_shape){.ranks = ranks, .header_bytes = round_header_bytes(ranks)};
    int rc = payload_init(&shape->payload, buffers, nbuffers, make_user);
    round_shape_set_lengths(shape);
    return rc;
}

void round_shape_call(struct round_shape *shape, uint64_t number)
{
    if (shape->described) {
        const struct payload_part *form = &shape->payload.part[0];
        number = splitmix_mix(number + form->count);
        number =
            splitmix_mix(number ^ ((uint64_t)form->dtype << 32 | (uint32_t)form->op)) |
            1;
    }
    shape->intent = round_intent(number);
}

int round_shape_describe(struct round_shape *shape, const pcoll_buffer *form)
{
    struct payload payload;
    CHECK(shape->described);
    int rc = payload_init(&payload, form, 1, NULL);
    if (rc != PCOLL_OK)
        return rc;
    if (payload.bytes > round_shape_capacity(shape))
        rc = fail(PCOLL_EINVAL, "form: expected at most %zu bytes, got %zu",
                  round_shape_capacity(shape), payload.bytes);
    else {
        shape->payload.part[0] = payload.part[0];
        shape->payload.bytes = payload.bytes;
    }
    payload_destroy(&payload);
    return rc;
}

void round_shape_follow(struct round_shape *shape, const struct round_shape *old)
{
    CHECK(shape->described == old->described);
    shape->intent = old->intent;
    if (!shape->described)
        return;
    shape->payload.part[0] = old->payload.part[0];
    shape->payload.bytes = old->payload.bytes;
}

size_t round_shape_data_bytes(const struct round_shape *shape)
{
    return shape->described ? round_shape_capacity(shape)
                            : payload_data_bytes(&shape->payload);
}

int round_shape_share(struct round_shape *shape, const struct round_shape *old)
{
    *shape = (struct round_shape){.ranks = old->ranks,
                                  .header_bytes = old->header_bytes,
                                  .described = old->described};
    pcoll_buffer room = {.count = round_shape_capacity(old), .dtype = PCOLL_UINT8};
    int rc = old->described ? payload_init(&shape->payload, &room, 1, NULL)
                            : payload_share(&shape->payload, &old->payload);
    round_shape_set_lengths(shape);
    return rc;
}

int round_shape_bury(struct round_shape *shape, const uint64_t *failed)
{
    size_t words = bitset_words(shape->ranks);
    CHECK(!shape->failed);
    if (!failed)
        return PCOLL_OK;
    shape->failed = calloc(words, sizeof *shape->failed);
    if (!shape->failed)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", shape->ranks);
    memcpy(shape->failed, failed, words * sizeof *failed);
    return PCOLL_OK;
}

void round_shape_pad(struct round_shape *shape, uint32_t slices)
{
    CHECK(shape->header_bytes == round_header_bytes(shape->ranks));
    payload_pad(&shape->payload, slices * shape->header_bytes);
    round_shape_set_lengths(shape);
}

void round_shape_destroy(struct round_shape *shape)
{
    CHECK(shape);
    payload_destroy(&shape->payload);
    free(shape->failed);
    shape->failed = NULL;
}

/* Segments. The cookie is in a page of its own before the memory. */

static size_t const page = 4096;

static int segment_too_large(size_t bytes, const char *why)
{
    return fail(PCOLL_ENOMEM,
                "a domain needs %zu bytes of shared memory on this node: %s; take "
                "domain=\"rank\", a shorter history or smaller buffers",
                bytes, why);
}

static int segment_map(struct segment *s, int fd)
{
    char *base = mmap(NULL, page + s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return segment_too_large(s->bytes, strerror(errno));
    madvise(base, page + s->bytes, MADV_HUGEPAGE); /* failure is harmless */
    s->memory = base + page;
    return PCOLL_OK;
}

static uint64_t *segment_cookie_of(const struct segment *s)
{
    return (uint64_t *)((char *)s->memory - page);
}

static int segment_make_file(size_t bytes, size_t needed, int *fd)
{
    char why[80];
    uint64_t left = memory_left();
    if (needed > left) {
        snprintf(why, sizeof why, "%llu are left", (unsigned long long)left);
        return segment_too_large(needed, why);
    }
    *fd = memfd_create("partialcoll-domain", MFD_CLOEXEC);
    if (*fd >= 0 && ftruncate(*fd, (off_t)(page + bytes)) == 0)
        return PCOLL_OK;
    int rc = segment_too_large(bytes, strerror(errno));
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return rc;
}

/*
 * Populate the mapping, so that the first rounds do not spend their time on page faults:
 * unlike posix_fallocate, this allocates large pages where the system has them. Before
 * Linux 5.14 the call fails with EINVAL, and the pages are only allocated. 0 or an error.
 */
static int segment_populate(const struct segment *s, size_t from, size_t bytes)
{
    enum { POPULATE_WRITE = 23 }; /* MADV_POPULATE_WRITE, which older headers lack */
    char *base = (char *)s->memory - page;
    size_t begin = from / page * page;
    int failed =
        madvise(base + begin, from + bytes - begin, POPULATE_WRITE) ? errno : 0;
    if (failed == EINVAL)
        failed = posix_fallocate(s->fd, (off_t)from, (off_t)bytes);
    return failed == EFAULT ? ENOSPC : failed;
}

/* Reserve in pieces: a signal undoes the piece that it interrupts, so a reservation of all memory at
 * once might never complete. */
static int segment_reserve_file(const struct segment *s, size_t from, size_t bytes)
{
    static size_t const piece = 4 << 20;
    size_t end = from + bytes;
    while (from < end) {
        size_t now = end - from < piece ? end - from : piece;
        int failed = segment_populate(s, from, now);
        if (failed && failed != EINTR)
            return segment_too_large(s->bytes, strerror(failed));
        from += failed ? 0 : now;
    }
    return PCOLL_OK;
}

int segment_create(size_t bytes, size_t needed, uint64_t cookie, struct segment *s)
{
    CHECK(needed > 0 && needed <= bytes && s);
    *s = (struct segment){.bytes = bytes, .fd = -1};
    int rc = segment_make_file(bytes, needed, &s->fd);
    if (rc == PCOLL_OK && (rc = segment_map(s, s->fd)) == PCOLL_OK)
        rc = segment_reserve_file(s, 0, page);
    if (rc == PCOLL_OK)
        *segment_cookie_of(s) = cookie;
    else
        segment_close(s);
    return rc;
}

int segment_open(uint64_t pid, uint64_t fd, size_t bytes, uint64_t cookie,
                 struct segment *s)
{
    CHECK(bytes > 0);
    char path[64];
    *s = (struct segment){.bytes = bytes, .fd = -1};
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)pid,
             (unsigned long long)fd);
    s->fd = open(path, O_RDWR | O_CLOEXEC);
    if (s->fd < 0)
        return fail(PCOLL_ENOMEM, "the shared memory of process %llu: %s",
                    (unsigned long long)pid, strerror(errno));
    int rc = lseek(s->fd, 0, SEEK_END) == (off_t)(page + bytes)
                 ? segment_map(s, s->fd)
                 : fail(PCOLL_ENOMEM, "the shared memory of process %llu is not ours",
                        (unsigned long long)pid);
    if (rc == PCOLL_OK && *segment_cookie_of(s) != cookie)
        rc = fail(PCOLL_ENOMEM, "the shared memory of process %llu is another one's",
                  (unsigned long long)pid);
    if (rc != PCOLL_OK)
        segment_close(s);
    return rc;
}

void segment_sealed(struct segment *s)
{
    CHECK(s->fd >= -1);
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

int segment_reserve(struct segment *s, size_t offset, size_t bytes)
{
    CHECK(s->memory || !bytes);
    CHECK(offset + bytes <= s->bytes);
    return bytes ? segment_reserve_file(s, page + offset, bytes) : PCOLL_OK;
}

static void segment_unmap(void *memory, size_t bytes)
{
    munmap(memory, bytes);
}

void segment_close(struct segment *s)
{
    CHECK(!s->memory || s->bytes > 0);
    if (s->memory)
        memory_dispose((char *)s->memory - page, page + s->bytes, segment_unmap);
    segment_sealed(s);
    s->memory = NULL;
}
