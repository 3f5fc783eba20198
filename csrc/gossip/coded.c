/* SPDX-License-Identifier: Apache-2.0 */
#include "gossip/coded.h"
#include "gossip/words.h"

#include <math.h>
#include <string.h>

#include "kernels/codec/quantize.h"

#include "base/check.h"

/* A distance that is not seen again is forgotten by and by. */
static const float memory_of_distances = 0.9f;

static void to_float(const struct layout *l, float *out, const void *elements,
                     size_t count)
{
    if (l->dtype != PCOLL_FLOAT64) {
        gossip_widen(l, out, elements, count);
        return;
    }
    const double *in = elements;
    for (size_t i = 0; i < count; i++)
        out[i] = (float)in[i];
}

static void from_float(const struct layout *l, void *held, const float *in,
                       size_t count)
{
    double *out = held;
    if (l->held == PCOLL_FLOAT64)
        for (size_t i = 0; i < count; i++)
            out[i] = in[i];
    else
        memcpy(held, in, count * sizeof *in);
}

/* One block in the form in which it is encoded. */
static void load(const struct gossip_memory *m, const struct layout *l, float *out,
                 const void *elements, size_t count, uint64_t seed)
{
    to_float(l, out, elements, count);
    if (m->rotate)
        lattice_rotate(out, count, seed);
}

static float step_for(const struct gossip_memory *m, size_t block, size_t length,
                      const float *key, bool exact)
{
    float distance, magnitude;
    lattice_distance(m->block, key, length, &distance, &magnitude);
    if (!exact) {
        distance = (float)m->margin * m->distances[block];
        if (!(m->distances[block] >= 0))
            return NAN;
    }
    return lattice_step(distance, magnitude, m->layout.bits, m->rotate);
}

void coded_write(struct gossip_memory *m, const void *x, const void *key, size_t first,
                 uint64_t seed, bool exact, const struct planes *to)
{
    const struct layout *l = &m->layout;
    CHECK(l->bits && first % LATTICE_BLOCK == 0);
    size_t end = first + chunk_length(l, first);
    for (size_t i = 0; first + i * LATTICE_BLOCK < end; i++) {
        size_t at = first + i * LATTICE_BLOCK, length = block_length(l, at);
        uint64_t block_seed = lattice_block_seed(seed, at / LATTICE_BLOCK);
        struct block_note *note = &to->notes[i];
        load(m, l, m->block, element_at(l, x, at), length, block_seed);
        if (key)
            load(m, l, m->key, element_at(l, key, at), length, block_seed);
        float step =
            step_for(m, at / LATTICE_BLOCK, length, key ? m->key : NULL, exact);
        *note = (struct block_note){.step = step, .coded = !isnan(step)};
        if (note->coded)
            note->hash =
                lattice_encode(m->block, length, step, block_seed, l->bits,
                               (char *)to->low + i * l->low,
                               to->high ? (char *)to->high + i * l->high : NULL);
    }
}

bool coded_read(struct gossip_memory *m, size_t block, size_t length, uint64_t seed,
                const struct block_note *note, const void *low, const void *high,
                const void *key, void *out)
{
    const struct layout *l = &m->layout;
    CHECK(block < l->blocks && length <= LATTICE_BLOCK);
    uint64_t block_seed = lattice_block_seed(seed, block);
    if (!gossip_note_fits(note))
        return false;
    if (key)
        load(m, l, m->key, key, length, block_seed);
    else
        memset(m->key, 0, length * sizeof *m->key);
    if (!lattice_decode(m->key, m->key, length, note->step, block_seed, l->bits, low,
                        high, note->hash))
        return false;
    if (m->rotate)
        lattice_rotate_back(m->key, length, block_seed);
    from_float(l, out, m->key, length);
    return true;
}

void coded_observe(struct gossip_memory *m, const void *x, const void *theirs,
                   size_t first, size_t length)
{
    const struct layout *l = &m->layout;
    struct layout held = *l;
    held.dtype = l->held;
    held.element = l->sum;
    for (size_t i = 0; i < length; i += LATTICE_BLOCK) {
        size_t n = block_length(l, first + i);
        float distance, magnitude;
        load(m, l, m->key, element_at(l, x, i), n, m->seed);
        load(m, &held, m->block, (const char *)theirs + i * l->sum, n, m->seed);
        lattice_distance(m->key, m->block, n, &distance, &magnitude);
        float *seen = &m->distances[(first + i) / LATTICE_BLOCK];
        float kept = *seen * memory_of_distances;
        *seen = isfinite(distance) && distance > kept ? distance : kept;
    }
}
