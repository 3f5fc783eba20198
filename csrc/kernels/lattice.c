/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pcoll_lattice_*: whole vectors of any float, block by block through float32 on the
 * stack, to and from payloads. What a block becomes is in quantise.h, where it is put
 * in lattice_form.h.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "../base/error.h"
#include "dtypes.h"
#include "lattice_form.h"
#include "loops.h"
#include "quantise.h"

/* Elements of a vector in and out of a block of float32. */

CLONES static void from_float64(void *out, const void *in, size_t count)
{
    float *restrict o = out;
    const double *restrict p = in;
    for (size_t i = 0; i < count; i++)
        o[i] = (float)p[i];
}

CLONES static void to_float64(void *out, const void *in, size_t count)
{
    double *restrict o = out;
    const float *restrict p = in;
    for (size_t i = 0; i < count; i++)
        o[i] = (double)p[i];
}

static void copy_float32(void *out, const void *in, size_t count)
{
    memcpy(out, in, count * sizeof(float));
}

struct form {
    size_t size; /* bytes of an element */
    convert_fn *widen, *narrow;
};

static struct form form_of(int dtype)
{
    const struct dtype *d = dtype_find(dtype);
    if (dtype == PCOLL_FLOAT64)
        return (struct form){d->size, from_float64, to_float64};
    if (dtype == PCOLL_FLOAT32)
        return (struct form){d->size, copy_float32, copy_float32};
    return (struct form){d->size, d->widen, d->narrow};
}

/* One block of a vector. */
struct block {
    uint64_t index;
    size_t count, offset; /* of its first element, in bytes */
    uint64_t seed;
};

static struct block block_of(const pcoll_lattice *l, uint64_t index)
{
    return (struct block){
        .index = index,
        .count = lattice_block_count(l, index),
        .offset = (size_t)index * LATTICE_BLOCK * form_of(l->dtype).size,
        .seed = lattice_block_seed(l->seed, index),
    };
}

/* A block of a vector (NULL: 0) as it is encoded. */
static void load(const pcoll_lattice *l, const struct block *b, const void *vector,
                 float *out)
{
    if (!vector) {
        memset(out, 0, b->count * sizeof *out);
        return;
    }
    form_of(l->dtype).widen(out, (const char *)vector + b->offset, b->count);
    if (l->rotate)
        lattice_rotate(out, b->count, b->seed);
}

int pcoll_lattice_size(const pcoll_lattice *lattice, uint64_t *bytes, uint64_t *blocks)
{
    struct lattice_layout at;
    int rc = lattice_layout(lattice, &at);
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
    int rc = lattice_layout(l, &at);
    for (uint64_t i = 0; !rc && i < at.blocks; i++) {
        float ours[LATTICE_BLOCK], theirs[LATTICE_BLOCK], magnitude;
        struct block b = block_of(l, i);
        load(l, &b, x, ours);
        load(l, &b, key, theirs);
        lattice_distance(ours, theirs, b.count, distances + i, &magnitude);
    }
    return rc;
}

/* Encode. */

static int check_finite(const pcoll_lattice *l, const struct block *b, const char *name,
                        const void *vector)
{
    float elements[LATTICE_BLOCK];
    if (!vector)
        return PCOLL_OK;
    form_of(l->dtype).widen(elements, (const char *)vector + b->offset, b->count);
    for (size_t i = 0; i < b->count; i++)
        if (!isfinite(elements[i]))
            return fail(PCOLL_EINVAL,
                        "%s: expected numbers that are finite as float32, got %g at "
                        "element %llu",
                        name, (double)elements[i],
                        (unsigned long long)(b->index * LATTICE_BLOCK + i));
    return PCOLL_OK;
}

/* Says why a block has no step. */
static int no_step(const pcoll_lattice *l, const struct block *b, const void *x,
                   const void *key)
{
    int rc = check_finite(l, b, "x", x);
    if (!rc)
        rc = check_finite(l, b, "key", key);
    if (rc)
        return rc;
    return fail(PCOLL_EINVAL,
                "x: expected elements and distances below about 2^125, got larger ones "
                "in block %llu",
                (unsigned long long)b->index);
}

/* NaN where it cannot be encoded. */
static float step_for(const pcoll_lattice *l, const struct block *b, const float *x,
                      const void *key, const float *distances, double margin)
{
    float theirs[LATTICE_BLOCK], distance, magnitude;
    if (!distances)
        load(l, b, key, theirs);
    lattice_distance(x, distances ? NULL : theirs, b->count, &distance, &magnitude);
    if (distances)
        distance = distances[b->index];
    return lattice_step((float)(margin * (double)distance), magnitude, l->bits);
}

static void encode_block(const pcoll_lattice *l, const struct lattice_layout *at,
                         const struct block *b, const float *x, float step,
                         char *payload)
{
    char *low = payload + at->low + b->index * at->low_each;
    char *high = l->high ? payload + at->high + b->index * at->high_each : NULL;
    uint64_t hash = lattice_encode(x, b->count, step, b->seed, l->bits, low, high);
    memcpy(payload + at->hashes + b->index * sizeof hash, &hash, sizeof hash);
    memcpy(payload + at->steps + b->index * sizeof step, &step, sizeof step);
}

int pcoll_lattice_encode(const pcoll_lattice *l, const void *x, const void *key,
                         const float *distances, double margin, void *payload)
{
    struct lattice_layout at;
    int rc = lattice_layout(l, &at);
    if (rc)
        return rc;
    if (!(margin >= 1) || !isfinite(margin))
        return fail(PCOLL_EINVAL, "margin: expected a number of at least 1, got %g",
                    margin);
    for (uint64_t i = 0; i < at.blocks; i++) {
        float ours[LATTICE_BLOCK];
        struct block b = block_of(l, i);
        load(l, &b, x, ours);
        float step = step_for(l, &b, ours, key, distances, margin);
        if (isnan(step))
            return no_step(l, &b, x, distances ? NULL : key);
        encode_block(l, &at, &b, ours, step, payload);
    }
    lattice_seal(l, &at, payload);
    return PCOLL_OK;
}

/* Decode. */

int pcoll_lattice_look(const void *payload, uint64_t bytes, pcoll_lattice *lattice)
{
    struct lattice_layout at;
    return lattice_open(payload, bytes, lattice, &at);
}

/* A payload that has been opened. */
struct reader {
    pcoll_lattice l;
    struct lattice_layout at;
    const char *payload;
};

/* With the low plane, then with both. out and key are apart, rotated if all is. */
static bool decode_block(const struct reader *r, const struct block *b,
                         const float *key, float *out)
{
    uint64_t hash;
    float step;
    int bits = r->l.bits;
    const char *low = r->payload + r->at.low + b->index * r->at.low_each;
    const char *high = r->payload + r->at.high + b->index * r->at.high_each;
    memcpy(&hash, r->payload + r->at.hashes + b->index * sizeof hash, sizeof hash);
    memcpy(&step, r->payload + r->at.steps + b->index * sizeof step, sizeof step);
    return lattice_decode(out, key, b->count, step, b->seed, bits, low, NULL, hash) ||
           (r->l.high &&
            lattice_decode(out, key, b->count, step, b->seed, bits, low, high, hash));
}

/* What to do with a block: key is that of the application, in its own form, or NULL. */
typedef void use_fn(const struct reader *r, const struct block *b, const float *decoded,
                    double weight, void *vector);

static int for_each_block(const void *payload, uint64_t bytes, const void *key,
                          void *vector, use_fn *use, double weight, uint8_t *failed,
                          uint64_t *failures)
{
    struct reader r = {.payload = payload};
    int rc = lattice_open(payload, bytes, &r.l, &r.at);
    if (rc)
        return rc;
    *failures = 0;
    for (uint64_t i = 0; i < r.at.blocks; i++) {
        float known[LATTICE_BLOCK], decoded[LATTICE_BLOCK];
        struct block b = block_of(&r.l, i);
        load(&r.l, &b, key, known);
        failed[i] = !decode_block(&r, &b, known, decoded);
        *failures += failed[i];
        if (failed[i])
            continue;
        if (r.l.rotate)
            lattice_rotate_back(decoded, b.count, b.seed);
        use(&r, &b, decoded, weight, (char *)vector + b.offset);
    }
    return PCOLL_OK;
}

static void store(const struct reader *r, const struct block *b, const float *decoded,
                  double weight, void *vector)
{
    (void)weight;
    form_of(r->l.dtype).narrow(vector, decoded, b->count);
}

int pcoll_lattice_decode(const void *payload, uint64_t bytes, const void *key,
                         void *out, uint8_t *failed, uint64_t *failures)
{
    return for_each_block(payload, bytes, key, out, store, 0, failed, failures);
}

CLONES static void approach_float32(float *restrict x, const float *restrict y,
                                    size_t count, float weight)
{
    for (size_t i = 0; i < count; i++)
        x[i] -= weight * (x[i] - y[i]);
}

CLONES static void approach_float64(double *restrict x, const float *restrict y,
                                    size_t count, double weight)
{
    for (size_t i = 0; i < count; i++)
        x[i] -= weight * (x[i] - (double)y[i]);
}

static void approach(const struct reader *r, const struct block *b,
                     const float *decoded, double weight, void *vector)
{
    struct form form = form_of(r->l.dtype);
    float ours[LATTICE_BLOCK];
    if (r->l.dtype == PCOLL_FLOAT32) {
        approach_float32(vector, decoded, b->count, (float)weight);
        return;
    }
    if (r->l.dtype == PCOLL_FLOAT64) {
        approach_float64(vector, decoded, b->count, weight);
        return;
    }
    form.widen(ours, vector, b->count);
    approach_float32(ours, decoded, b->count, (float)weight);
    form.narrow(vector, ours, b->count);
}

int pcoll_lattice_average(const void *payload, uint64_t bytes, double weight, void *x,
                          uint8_t *failed, uint64_t *failures)
{
    return for_each_block(payload, bytes, x, x, approach, weight, failed, failures);
}
