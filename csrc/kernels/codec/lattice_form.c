/* SPDX-License-Identifier: Apache-2.0 */
/* See lattice_form.h. Nothing in a payload is aligned, and nothing is believed. */
#include "kernels/codec/lattice_form.h"

#include <string.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/codec/quantize.h"

enum { VERSION = 1, ROTATED = 1, HAS_HIGH = 2, FLAGS = 3 };
enum {
    CHECKSUM = 24,
    TABLE = 32
}; /* offsets; the header ends where the table begins */
static const uint32_t magic = 0x514c4350; /* "PCLQ", if the lowest byte comes first */

struct lattice_header {
    uint32_t magic;
    uint8_t version, dtype, bits, flags;
    uint64_t count, seed;
};
_Static_assert(sizeof(struct lattice_header) == CHECKSUM, "no gaps");

static int lattice_check_options(const pcoll_lattice *l)
{
    if (l->dtype != PCOLL_FLOAT32 && l->dtype != PCOLL_FLOAT64 &&
        l->dtype != PCOLL_FLOAT16 && l->dtype != PCOLL_BFLOAT16)
        return fail(PCOLL_EINVAL,
                    "dtype: expected float32, float64, float16 or bfloat16, got %d",
                    l->dtype);
    if (l->bits < LATTICE_LEAST_BITS || l->bits > LATTICE_MAX_BITS)
        return fail(PCOLL_EINVAL, "bits: expected 2 to 16, got %d", l->bits);
    if (l->count > (uint64_t)1 << 48)
        return fail(PCOLL_EINVAL, "count: expected at most 2^48 elements, got %llu",
                    (unsigned long long)l->count);
    return PCOLL_OK;
}

size_t lattice_block_count(const pcoll_lattice *l, uint64_t block)
{
    uint64_t left = l->count - block * LATTICE_BLOCK;
    return left < LATTICE_BLOCK ? (size_t)left : LATTICE_BLOCK;
}

int lattice_layout(const pcoll_lattice *l, struct lattice_layout *at)
{
    int rc = lattice_check_options(l);
    if (rc)
        return rc;
    uint64_t full = l->count / LATTICE_BLOCK;
    size_t rest = (size_t)(l->count % LATTICE_BLOCK);
    at->low_each = lattice_low_bytes(LATTICE_BLOCK, l->bits);
    at->high_each = l->high ? lattice_high_bytes(LATTICE_BLOCK, l->bits) : 0;
    at->blocks = full + (rest > 0);
    at->hashes = TABLE;
    at->steps = at->hashes + at->blocks * sizeof(uint64_t);
    at->low = at->steps + at->blocks * sizeof(float);
    at->high = at->low + full * at->low_each + lattice_low_bytes(rest, l->bits);
    at->bytes = at->high + full * at->high_each +
                (l->high ? lattice_high_bytes(rest, l->bits) : 0);
    return PCOLL_OK;
}

/* A change of one word always changes it: each step is one to one. */
static uint64_t lattice_extend_sum(uint64_t sum, const char *from, uint64_t bytes)
{
    for (uint64_t word; bytes >= sizeof word; bytes -= sizeof word) {
        memcpy(&word, from, sizeof word);
        sum = splitmix_mix(sum ^ word) + 1;
        from += sizeof word;
    }
    uint64_t last = 0;
    memcpy(&last, from, bytes);
    return splitmix_mix(sum ^ last);
}

static uint64_t lattice_checksum(const struct lattice_layout *at, const char *payload)
{
    uint64_t sum = lattice_extend_sum(at->bytes, payload, CHECKSUM);
    return lattice_extend_sum(sum, payload + TABLE, at->low - TABLE);
}

void lattice_seal(const pcoll_lattice *l, const struct lattice_layout *at,
                  char *payload)
{
    struct lattice_header head = {
        .magic = magic,
        .version = VERSION,
        .dtype = (uint8_t)l->dtype,
        .bits = (uint8_t)l->bits,
        .flags = (uint8_t)((l->rotate ? ROTATED : 0) | (l->high ? HAS_HIGH : 0)),
        .count = l->count,
        .seed = l->seed,
    };
    memcpy(payload, &head, sizeof head);
    uint64_t sum = lattice_checksum(at, payload);
    memcpy(payload + CHECKSUM, &sum, sizeof sum);
}

static int lattice_read_header(const char *payload, uint64_t bytes,
                               struct lattice_header *head)
{
    if (bytes < TABLE)
        return fail(PCOLL_EPROTOCOL,
                    "payload: expected a header of %d bytes, got %llu bytes", TABLE,
                    (unsigned long long)bytes);
    memcpy(head, payload, sizeof *head);
    if (head->magic == __builtin_bswap32(magic))
        return fail(PCOLL_EPROTOCOL,
                    "payload: was encoded on a machine of the other byte order");
    if (head->magic != magic)
        return fail(PCOLL_EPROTOCOL,
                    "payload: does not begin as one of Lattice.encode does");
    if (head->version != VERSION)
        return fail(PCOLL_EPROTOCOL, "payload: expected version %d, got %d", VERSION,
                    head->version);
    return PCOLL_OK;
}

int lattice_open(const char *payload, uint64_t bytes, pcoll_lattice *l,
                 struct lattice_layout *at)
{
    struct lattice_header head;
    uint64_t sum;
    int rc = lattice_read_header(payload, bytes, &head);
    if (rc)
        return rc;
    *l = (pcoll_lattice){.count = head.count,
                         .seed = head.seed,
                         .dtype = head.dtype,
                         .bits = head.bits,
                         .high = (head.flags & HAS_HIGH) != 0,
                         .rotate = (head.flags & ROTATED) != 0};
    if (head.flags & ~FLAGS || lattice_layout(l, at) != PCOLL_OK)
        return fail(PCOLL_EPROTOCOL, "payload: the header is damaged");
    if (at->bytes != bytes)
        return fail(PCOLL_EPROTOCOL,
                    "payload: expected %llu bytes by its header, got %llu: truncated, "
                    "or the header is damaged",
                    (unsigned long long)at->bytes, (unsigned long long)bytes);
    memcpy(&sum, payload + CHECKSUM, sizeof sum);
    if (sum != lattice_checksum(at, payload))
        return fail(PCOLL_EPROTOCOL, "payload: header or table is damaged (checksum)");
    return PCOLL_OK;
}
