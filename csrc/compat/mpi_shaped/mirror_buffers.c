/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/mpi_shaped/mirror_buffers.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"

enum { SLICE_US = 1000000, NOWHERE = -1 };

static uint64_t mirror_buffer_number(const void *address)
{
    return (uintptr_t)address;
}

static int mirror_buffer_device_of(const void *address)
{
    int32_t device = NOWHERE;
    return pcoll_device_of(mirror_buffer_number(address), &device) == PCOLL_OK ? device : NOWHERE;
}

static void mirror_buffer_end(struct mirror_buffer *b)
{
    (void)pcoll_mirror_free(&b->mirror);
    free(b->memory);
    *b = (struct mirror_buffer){0};
}

/* Pinned memory for so many bytes of this device. */
static int mirror_buffer_make(struct mirror_buffer *b, int device, uint64_t bytes)
{
    if (b->mirror && b->device == device && b->room >= bytes)
        return PCOLL_OK;
    mirror_buffer_end(b);
    void *memory = pages_allocate(bytes);
    if (!memory)
        return fail(PCOLL_ENOMEM, "no memory for a buffer's copy on the host");
    int rc = pcoll_mirror_create(device, &b->mirror);
    if (rc == PCOLL_OK)
        rc = pcoll_mirror_pin(b->mirror, memory, bytes);
    b->memory = memory;
    b->device = device;
    b->room = bytes;
    if (rc != PCOLL_OK)
        mirror_buffer_end(b);
    return rc;
}

static int mirror_buffer_await(const struct mirror_buffer *b)
{
    int rc;
    do
        rc = pcoll_mirror_wait(b->mirror, SLICE_US);
    while (rc == PCOLL_EAGAIN);
    return rc;
}

/* *address becomes the host's, with its bytes if they are read. *original: where it was,
 * if that was on a device. */
static int mirror_buffer_replace(struct mirror_buffer *b, const void **address, uint64_t bytes,
                   bool read, uint64_t *original)
{
    int device = mirror_buffer_device_of(*address);
    *original = 0;
    if (device == NOWHERE)
        return PCOLL_OK;
    int rc = mirror_buffer_make(b, device, bytes);
    if (rc != PCOLL_OK)
        return rc;
    *original = mirror_buffer_number(*address);
    *address = b->memory;
    pcoll_piece piece = {b->memory, *original, bytes};
    if (read)
        rc = pcoll_mirror_pull(b->mirror, &piece, 1, 0);
    return rc == PCOLL_OK ? mirror_buffer_await(b) : rc;
}

int mirror_buffers_pull(struct mirror_buffers *b, MPI_Datatype type, uint64_t count,
                        const void **send, void **recv)
{
    MPI_Aint lower, extent;
    uint64_t sent;
    b->result = 0;
    if (!count || !pcoll_device_in_use())
        return PCOLL_OK;
    MPI_Type_get_extent(type, &lower, &extent);
    b->bytes = count * (uint64_t)extent;
    bool in_place = *send == *recv;
    const void *result = *recv;
    int rc = mirror_buffer_replace(&b->recv, &result, b->bytes, in_place, &b->result);
    *recv = (void *)(uintptr_t)result;
    if (in_place)
        *send = result;
    else if (rc == PCOLL_OK)
        rc = mirror_buffer_replace(&b->send, send, b->bytes, true, &sent);
    return rc;
}

int mirror_buffers_push(struct mirror_buffers *b)
{
    if (!b->result)
        return PCOLL_OK;
    pcoll_piece piece = {b->recv.memory, b->result, b->bytes};
    int rc = pcoll_mirror_push(b->recv.mirror, &piece, 1, 0);
    return rc == PCOLL_OK ? mirror_buffer_await(&b->recv) : rc;
}

void mirror_buffers_free(struct mirror_buffers *b)
{
    mirror_buffer_end(&b->send);
    mirror_buffer_end(&b->recv);
}
