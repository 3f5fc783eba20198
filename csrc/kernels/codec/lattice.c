/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pcoll_lattice_*: vectors of any float dtype to and from payloads, block by block through
 * float32 on the stack. quantize.h encodes a block. Nothing in a payload is aligned, and
 * everything that is read from a payload is checked.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/codec/quantize.h"
#include "kernels/loops.h"
#include "kernels/reduce.h"

/* Offsets in a payload; docs/quantization.md has its form. The checksum is of everything before the
 * planes, except itself. Low planes come first, so that a reader may fetch them alone. */
struct lattice_layout {
    pcoll_lattice l;
    uint64_t blocks, bytes;
    uint64_t hashes, steps, low, high; /* offsets */
    size_t low_each, high_each;        /* bytes of a full block */
};

enum { VERSION = 1, ROTATED = 1, HAS_HIGH = 2, FLAGS = 3 };
/* Offsets of the checksum and of the table, which follows the header. */
enum { CHECKSUM = 24, TABLE = 32 };
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

static int lattice_layout(const pcoll_lattice *l, struct lattice_layout *at)
{
    int rc = lattice_check_options(l);
    if (rc)
        return rc;
    uint64_t full = l->count / LATTICE_BLOCK;
    size_t rest = (size_t)(l->count % LATTICE_BLOCK);
    at->l = *l;
    at->low_each = plane_bytes(LATTICE_BLOCK, l->bits);
    at->high_each =
        l->high ? plane_bytes(LATTICE_BLOCK, LATTICE_MAX_BITS - l->bits) : 0;
    at->blocks = full + (rest > 0);
    at->hashes = TABLE;
    at->steps = at->hashes + at->blocks * sizeof(uint64_t);
    at->low = at->steps + at->blocks * sizeof(float);
    at->high = at->low + full * at->low_each + plane_bytes(rest, l->bits);
    at->bytes = at->high + full * at->high_each +
                (l->high ? plane_bytes(rest, LATTICE_MAX_BITS - l->bits) : 0);
    return PCOLL_OK;
}

/* A change of one word always changes the sum: each step is one to one. */
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

static void lattice_seal(const struct lattice_layout *at, char *payload)
{
    const pcoll_lattice *l = &at->l;
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

static int lattice_open(const char *payload, uint64_t bytes, struct lattice_layout *at)
{
    struct lattice_header head;
    uint64_t sum;
    if (bytes < TABLE)
        return fail(PCOLL_EPROTOCOL,
                    "payload: expected a header of %d bytes, got %llu bytes", TABLE,
                    (unsigned long long)bytes);
    memcpy(&head, payload, sizeof head);
    if (head.magic == __builtin_bswap32(magic))
        return fail(PCOLL_EPROTOCOL,
                    "payload: was encoded on a machine of the other byte order");
    if (head.magic != magic)
        return fail(PCOLL_EPROTOCOL,
                    "payload: does not begin as one of Lattice.encode does");
    if (head.version != VERSION)
        return fail(PCOLL_EPROTOCOL, "payload: expected version %d, got %d", VERSION,
                    head.version);
    pcoll_lattice l = {.count = head.count,
                       .seed = head.seed,
                       .dtype = head.dtype,
                       .bits = head.bits,
                       .high = (head.flags & HAS_HIGH) != 0,
                       .rotate = (head.flags & ROTATED) != 0};
    if (head.flags & ~FLAGS || lattice_layout(&l, at) != PCOLL_OK)
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

/* Vectors. */

CONVERSION(lattice_from_float64, float, double, (float))
CONVERSION(lattice_to_float64, double, float, (double))

static void lattice_copy_float32(void *out, const void *in, size_t count)
{
    memcpy(out, in, count * sizeof(float));
}

struct lattice_elements lattice_form_of(int dtype)
{
    const struct dtype *d = dtype_find(dtype);
    if (dtype == PCOLL_FLOAT64)
        return (struct lattice_elements){d->size, lattice_from_float64,
                                         lattice_to_float64};
    if (dtype == PCOLL_FLOAT32)
        return (struct lattice_elements){d->size, lattice_copy_float32,
                                         lattice_copy_float32};
    return (struct lattice_elements){d->size, d->widen, d->narrow};
}

/* A block of a vector. */
struct lattice_block {
    uint64_t index;
    size_t count, offset; /* of its first element, in bytes */
    uint64_t seed;
};

static struct lattice_block lattice_block_of(const pcoll_lattice *l, uint64_t index)
{
    uint64_t left = l->count - index * LATTICE_BLOCK;
    return (struct lattice_block){
        .index = index,
        .count = left < LATTICE_BLOCK ? (size_t)left : LATTICE_BLOCK,
        .offset = (size_t)index * LATTICE_BLOCK * lattice_form_of(l->dtype).size,
        .seed = splitmix_at(l->seed, index),
    };
}

const float *lattice_load(int dtype, bool rotate, const void *elements, size_t count,
                          uint64_t seed, float *room)
{
    const float *loaded = dtype == PCOLL_FLOAT32 ? elements : room;
    if (!elements)
        return memset(room, 0, count * sizeof *room);
    if (dtype != PCOLL_FLOAT32)
        lattice_form_of(dtype).widen(room, elements, count);
    if (!rotate)
        return loaded;
    lattice_rotate(room, loaded, count, seed);
    return room;
}

static const float *lattice_load_of(const pcoll_lattice *l,
                                    const struct lattice_block *b, const void *vector,
                                    float *room)
{
    return lattice_load(l->dtype, l->rotate,
                        vector ? (const char *)vector + b->offset : NULL, b->count,
                        b->seed, room);
}

void pcoll_lattice_init(pcoll_lattice *lattice)
{
    if (lattice)
        *lattice = (pcoll_lattice){.bits = 8};
}

int pcoll_lattice_size(const pcoll_lattice *lattice, uint64_t *bytes, uint64_t *blocks)
{
    struct lattice_layout at;
    int rc = fail_if_null(lattice, bytes, blocks) ?: lattice_layout(lattice, &at);
    if (rc)
        return rc;
    *bytes = at.bytes;
    *blocks = at.blocks;
    return PCOLL_OK;
}

int pcoll_lattice_distances(const pcoll_lattice *l, const void *x, const void *key,
                            float *distances)
{
    struct lattice_layout at;
    int rc = fail_if_null_as("lattice", l) ?: lattice_layout(l, &at);
    if (!rc)
        rc = fail_if_null_array(l->count, x, distances);
    for (uint64_t i = 0; !rc && i < at.blocks; i++) {
        _Alignas(64) float room[LATTICE_BLOCK], more[LATTICE_BLOCK], magnitude;
        struct lattice_block b = lattice_block_of(l, i);
        lattice_distance(lattice_load_of(l, &b, x, room),
                         lattice_load_of(l, &b, key, more), b.count, distances + i,
                         &magnitude);
    }
    return rc;
}

/* Encode. */

/* Return the error of a block that has no step. */
static int lattice_explain_no_step(const pcoll_lattice *l,
                                   const struct lattice_block *b, const void *x,
                                   const void *key)
{
    const char *const vectors[] = {x, key}, *const names[] = {"x", "key"};
    float elements[LATTICE_BLOCK];
    for (int v = 0; v < 2; v++) {
        if (!vectors[v])
            continue;
        lattice_form_of(l->dtype).widen(elements, vectors[v] + b->offset, b->count);
        for (size_t i = 0; i < b->count; i++)
            if (!isfinite(elements[i]))
                return fail(PCOLL_EINVAL,
                            "%s: expected numbers that are finite as float32, got %g "
                            "at element %llu",
                            names[v], (double)elements[i],
                            (unsigned long long)(b->index * LATTICE_BLOCK + i));
    }
    return fail(PCOLL_EINVAL,
                "x: expected elements and distances below about 2^%d, got larger ones "
                "in block %llu",
                l->rotate ? 117 : 125, (unsigned long long)b->index);
}

int pcoll_lattice_encode(const pcoll_lattice *l, const void *x, const void *key,
                         const float *distances, double margin, void *payload)
{
    char *to = payload;
    struct lattice_layout at;
    int rc = fail_if_null_as("lattice, payload", l, payload) ?: lattice_layout(l, &at);
    if (!rc)
        rc = fail_if_null_array(l->count, x);
    if (rc)
        return rc;
    if (!(margin >= 1) || !isfinite(margin))
        return fail(PCOLL_EINVAL, "margin: expected a number of at least 1, got %g",
                    margin);
    for (uint64_t i = 0; i < at.blocks; i++) {
        _Alignas(64) float room[LATTICE_BLOCK], more[LATTICE_BLOCK], distance,
            magnitude;
        struct lattice_block b = lattice_block_of(l, i);
        const float *ours = lattice_load_of(l, &b, x, room);
        lattice_distance(ours, distances ? NULL : lattice_load_of(l, &b, key, more),
                         b.count, &distance, &magnitude);
        if (distances)
            distance = distances[i];
        float step = lattice_step((float)(margin * (double)distance), magnitude,
                                  l->bits, l->rotate);
        if (isnan(step))
            return lattice_explain_no_step(l, &b, x, distances ? NULL : key);
        uint64_t hash = lattice_encode(
            ours, b.count, step, b.seed, l->bits, to + at.low + i * at.low_each,
            l->high ? to + at.high + i * at.high_each : NULL);
        memcpy(to + at.hashes + i * sizeof hash, &hash, sizeof hash);
        memcpy(to + at.steps + i * sizeof step, &step, sizeof step);
    }
    lattice_seal(&at, payload);
    return PCOLL_OK;
}

/* Decode. */

int pcoll_lattice_look(const void *payload, uint64_t bytes, pcoll_lattice *lattice)
{
    struct lattice_layout at;
    int rc = fail_if_null_array(bytes, payload)
                 ?: fail_if_null(lattice)
                 ?: lattice_open(payload, bytes, &at);
    if (!rc)
        *lattice = at.l;
    return rc;
}

/* Try the low plane first, then both; the output stays rotated. With a high plane, `out` must not
 * alias `key`. */
static bool lattice_decode_block(const struct lattice_layout *at, const char *payload,
                                 const struct lattice_block *b, const float *key,
                                 float *out)
{
    uint64_t hash;
    float step;
    const char *low = payload + at->low + b->index * at->low_each;
    const char *high = payload + at->high + b->index * at->high_each;
    memcpy(&hash, payload + at->hashes + b->index * sizeof hash, sizeof hash);
    memcpy(&step, payload + at->steps + b->index * sizeof step, sizeof step);
    return lattice_decode(out, key, b->count, step, b->seed, at->l.bits, low, NULL,
                          hash) ||
           (at->l.high && lattice_decode(out, key, b->count, step, b->seed, at->l.bits,
                                         low, high, hash));
}

/* Move x towards y, which is overwritten: in float64 if x has that dtype, otherwise in float32. */
static void lattice_approach(int dtype, void *x, float *y, size_t count, double weight)
{
    struct lattice_elements form = lattice_form_of(dtype);
    _Alignas(64) char wide[LATTICE_BLOCK * sizeof(double)];
    void *moved = dtype == PCOLL_FLOAT32 || dtype == PCOLL_FLOAT64 ? x : wide, *to = y;
    if (dtype == PCOLL_FLOAT64)
        form.narrow(to = wide, y, count);
    else if (moved == wide)
        form.widen(wide, x, count);
    model_average(dtype, moved, to, NULL, to, weight, 0, count);
    if (moved == wide)
        form.narrow(x, wide, count);
}

/* Decode all blocks into a vector, or move the vector towards them (weight). key may be NULL. A
 * block is decoded in place, or rotated back to its place, if the vector has the form in which
 * blocks are decoded, but it is not decoded over a key that the high plane may need. */
static int lattice_decode_all(const void *payload, uint64_t bytes, const void *key,
                              void *vector, const double *weight, uint8_t *failed,
                              uint64_t *failures)
{
    struct lattice_layout layout;
    const pcoll_lattice *l = &layout.l;
    int rc =
        fail_if_null_array(bytes, payload) ?: lattice_open(payload, bytes, &layout);
    if (rc)
        return rc;
    bool same_form = !weight && l->dtype == PCOLL_FLOAT32 &&
                     (uintptr_t)vector % _Alignof(float) == 0;
    bool direct = same_form && !l->rotate && !(l->high && key == vector);
    *failures = 0;
    for (uint64_t i = 0; i < layout.blocks; i++) {
        _Alignas(64) float room[LATTICE_BLOCK], decoded[LATTICE_BLOCK];
        struct lattice_block b = lattice_block_of(l, i);
        char *at = (char *)vector + b.offset;
        float *place = (float *)(void *)at, *into = direct ? place : decoded;
        failed[i] = !lattice_decode_block(&layout, payload, &b,
                                          lattice_load_of(l, &b, key, room), into);
        *failures += failed[i];
        if (failed[i])
            continue;
        if (l->rotate)
            lattice_rotate_back(same_form ? place : decoded, into, b.count, b.seed);
        if (weight)
            lattice_approach(l->dtype, at, decoded, b.count, *weight);
        else if (!direct && !(same_form && l->rotate))
            lattice_form_of(l->dtype).narrow(at, decoded, b.count);
    }
    return PCOLL_OK;
}

int pcoll_lattice_decode(const void *payload, uint64_t bytes, const void *key,
                         void *out, uint8_t *failed, uint64_t *failures)
{
    return fail_if_null(out, failed, failures)
               ?: lattice_decode_all(payload, bytes, key, out, NULL, failed, failures);
}

int pcoll_lattice_average(const void *payload, uint64_t bytes, double weight, void *x,
                          uint8_t *failed, uint64_t *failures)
{
    return fail_if_null(x, failed, failures)
               ?: lattice_decode_all(payload, bytes, x, x, &weight, failed, failures);
}
