/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lattice codec: planes against bits extracted one by one; guaranteed decoding and its
 * error; detection of wrong decodes, flipped bits and arbitrary bytes; rotation; payloads.
 * The last check is a digest of all results: this program is compiled for several
 * processors, and the digest is the same for all.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "kernels/codec/quantize.h"
#include "check.h"

static const size_t counts[] = {0, 1, 2, 3, 15, 16, 17, 31, 509, 1000, 1023, 1024};
enum { COUNTS = sizeof counts / sizeof *counts };

/* A sequence of random numbers. */
struct draw {
    uint64_t stream, n;
};

static uint64_t draw_word(struct draw *d)
{
    return splitmix_at(d->stream, d->n++);
}

/* In [-1, 1], both ends included, without functions that may differ between systems. */
static float draw_float(struct draw *d)
{
    return (float)((double)(int64_t)(draw_word(d) >> 11) * 0x1p-52 - 1);
}

static void draw_block(struct draw *d, float *x, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++)
        x[i] = scale * draw_float(d);
}

/* A power of two from 2^least to 2^most. */
static float draw_scale(struct draw *d, int least, int most)
{
    return ldexpf(1, least + (int)(draw_word(d) % (uint64_t)(most - least + 1)));
}

/* An encoded block. Planes are at odd addresses and have exactly the size they need. */
struct coded {
    size_t count;
    float step;
    uint64_t seed, hash;
    int bits;
    char *low, *high, *memory;
};

static struct coded encode(const float *x, size_t count, float step, uint64_t seed,
                           int bits)
{
    struct coded c = {.count = count, .step = step, .seed = seed, .bits = bits};
    size_t low = plane_bytes(count, bits), high = plane_bytes(count, 16 - bits);
    c.memory = malloc(1 + low + high);
    c.low = c.memory + 1;
    c.high = c.low + low;
    c.hash = lattice_encode(x, count, step, seed, bits, c.low, c.high);
    return c;
}

static bool decode(const struct coded *c, const float *key, bool high, float *out)
{
    return lattice_decode(out, key, c->count, c->step, c->seed, c->bits, c->low,
                          high ? c->high : NULL, c->hash);
}

/* Planes. */

static void test_sizes(void)
{
    for (int bits = LATTICE_LEAST_BITS; bits <= LATTICE_MAX_BITS; bits++) {
        EXPECT(plane_bytes(1024, bits) == 128 * (size_t)bits &&
                   plane_bytes(1024, 16 - bits) == 128 * (size_t)(16 - bits),
               "%d bits", bits);
        for (size_t count = 0; count <= 1024; count++) {
            size_t bytes = plane_bytes(count, bits);
            EXPECT(8 * bytes >= count * (size_t)bits &&
                       8 * bytes < (count + 16) * (size_t)bits,
                   "%zu elements of %d bits in %zu bytes", count, bits, bytes);
        }
    }
}

/* Bit `bit` of the word in this row and lane, located as quantize.h specifies. */
static int plane_bit(const unsigned char *plane, size_t lanes, size_t row, size_t lane,
                     int bit, int width)
{
    size_t at = row * (size_t)width + (size_t)bit;
    uint16_t word;
    memcpy(&word, plane + 2 * (at / 16 * lanes + lane), sizeof word);
    return word >> at % 16 & 1;
}

static void check_plane(size_t lanes, int shift, int width)
{
    struct draw d = {.stream = 1};
    uint16_t words[1024], back[1024] = {0};
    unsigned char plane[2050];
    size_t count = lanes * PLANE_ROWS;
    for (size_t i = 0; i < count; i++)
        words[i] = (uint16_t)draw_word(&d);
    memset(plane, 77, sizeof plane);
    plane_pack(plane + 1, words, lanes, shift, width);
    EXPECT(plane[0] == 77 && plane[1 + plane_bytes(count, width)] == 77,
           "written over");
    for (size_t i = 0; i < count; i++)
        for (int bit = 0; bit < width; bit++)
            EXPECT(plane_bit(plane + 1, lanes, i / lanes, i % lanes, bit, width) ==
                       (words[i] >> (shift + bit) & 1),
                   "%zu lanes, %d bits from %d: word %zu", lanes, width, shift, i);
    plane_unpack(back, plane + 1, lanes, shift, width);
    uint16_t mask = (uint16_t)(((1u << width) - 1) << shift);
    for (size_t i = 0; i < count; i++)
        EXPECT(back[i] == (words[i] & mask), "%d bits from %d come back as %x, not %x",
               width, shift, back[i], words[i] & mask);
}

static void test_planes(void)
{
    const size_t lanes[] = {1, 2, 7, 64};
    for (int i = 0; i < 4; i++)
        for (int width = 0; width <= 16; width++)
            for (int shift = 0; shift + width <= 16; shift++)
                check_plane(lanes[i], shift, width);
}

/* Successful decoding. */

static void check_error(const struct coded *c, const float *x, const float *y,
                        float magnitude)
{
    double most = 0.5 * (double)c->step + 0x1p-21 * (double)magnitude;
    for (size_t i = 0; i < c->count; i++)
        EXPECT(fabs((double)x[i] - (double)y[i]) <= most,
               "%d bits: element %zu is off by %g, the step is %g", c->bits, i,
               fabs((double)x[i] - (double)y[i]), (double)c->step);
}

/* A key exactly at the distance for which lattice_step guarantees decoding. */
static void draw_key(struct draw *d, float *key, const float *x, size_t count, float by)
{
    for (size_t i = 0; i < count; i++)
        key[i] = draw_word(d) % 2 ? x[i] + by : x[i] - by;
}

static void check_round_trip(struct draw *d, size_t count, int bits)
{
    float x[LATTICE_BLOCK], key[LATTICE_BLOCK], y[LATTICE_BLOCK], distance, magnitude;
    float scale = draw_scale(d, -120, 100), by = scale * draw_scale(d, -26, 10);
    draw_block(d, x, count, scale);
    draw_key(d, key, x, count, by);
    lattice_distance(x, key, count, &distance, &magnitude);
    float step = lattice_step(distance, magnitude, bits, false);
    struct coded c = encode(x, count, step, draw_word(d), bits);
    EXPECT(decode(&c, key, false, y), "%zu elements of %d bits, scale %g, distance %g",
           count, bits, (double)scale, (double)distance);
    check_error(&c, x, y, magnitude);
    /* Too far for the low plane, near enough for both planes. */
    float steps = (float)(1 << (bits - 1)) + (float)(draw_word(d) % 30000);
    steps = fminf(steps, 32766);
    draw_key(d, key, x, count, steps * step);
    lattice_distance(x, key, count, &distance, &magnitude);
    if (count && bits < 16 && distance >= (float)(1 << (bits - 1)) * step)
        EXPECT(!decode(&c, key, false, y), "a key of %g steps", (double)steps);
    if (lattice_step(distance, magnitude, 16, false) <= step) {
        EXPECT(decode(&c, key, true, y), "high plane, a key of %g steps",
               (double)steps);
        check_error(&c, x, y, magnitude);
        EXPECT(decode(&c, key, true, key), "in place");
        EXPECT(!memcmp(key, y, count * sizeof *y), "in place, something else");
    }
    free(c.memory);
}

static void test_round_trips(void)
{
    struct draw d = {.stream = 2};
    for (int bits = LATTICE_LEAST_BITS; bits <= LATTICE_MAX_BITS; bits++)
        for (int i = 0; i < COUNTS; i++)
            for (int k = 0; k < 20; k++)
                check_round_trip(&d, counts[i], bits);
}

/* The step is only a little larger than arithmetic demands. */
static void test_step_is_least(void)
{
    for (int bits = LATTICE_LEAST_BITS; bits <= LATTICE_MAX_BITS; bits++) {
        float least = 2 / ((float)(1 << bits) - 1);
        float step = lattice_step(1, 1, bits, false);
        EXPECT(step > least && step < least * 1.00001f, "%d bits: %g", bits,
               (double)step);
    }
    EXPECT(lattice_step(0, 3, 8, false) == 3 * 0x1p-20f, "spacing of floats");
    EXPECT(lattice_step(1e-9f, 3, 8, false) == 3 * 0x1p-20f, "spacing of floats");
    EXPECT(lattice_step(0, 1e-40f, 8, false) == 0x1p-100f, "subnormal");
    EXPECT(lattice_step(0, 0, 8, false) == 0, "zeros");
    const float no[][2] = {{NAN, 1},   {1, NAN},   {INFINITY, 1}, {1, INFINITY},
                           {3e38f, 1}, {1, 3e38f}, {-1, 1},       {NAN, NAN},
                           {1, -1},    {NAN, 0},   {0, NAN}};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        EXPECT(isnan(lattice_step(no[i][0], no[i][1], 8, false)), "%g %g",
               (double)no[i][0], (double)no[i][1]);
}

/* A block of zeros is exact for every key. */
static void test_zeros(void)
{
    const float x[40] = {0}, minus[40] = {-0.0f};
    float key[40], y[40];
    struct draw d = {.stream = 3};
    draw_block(&d, key, 40, 1e30f);
    struct coded c = encode(x, 40, 0, 5, 8);
    EXPECT(decode(&c, key, false, y) && !memcmp(x, y, sizeof x), "zeros");
    EXPECT(decode(&c, NULL, false, y) && !memcmp(x, y, sizeof x), "zeros");
    free(c.memory);
    c = encode(minus, 40, 0, 5, 8);
    EXPECT(decode(&c, NULL, false, y) && !memcmp(x, y, sizeof x), "minus zeros");
    free(c.memory);
}

static void test_distance(void)
{
    float x[37], key[37], distance, magnitude;
    struct draw d = {.stream = 4};
    const float odd[] = {NAN, INFINITY, -INFINITY};
    for (size_t at = 0; at < 37; at++) {
        draw_block(&d, x, 37, 1);
        memcpy(key, x, sizeof x);
        x[at] = -5;
        lattice_distance(x, NULL, 37, &distance, &magnitude);
        EXPECT(distance == 5 && magnitude == 5, "from 0");
        key[at] = 2;
        lattice_distance(x, key, 37, &distance, &magnitude);
        EXPECT(distance == 7 && magnitude == 5, "%g %g", (double)distance,
               (double)magnitude);
        for (int i = 0; i < 3; i++) {
            key[at] = odd[i];
            lattice_distance(x, key, 37, &distance, &magnitude);
            EXPECT(!isfinite(distance) && magnitude == 5, "key %g", (double)odd[i]);
            key[at] = 2;
            x[at] = odd[i];
            lattice_distance(x, key, 37, &distance, &magnitude);
            EXPECT(!isfinite(distance) && !isfinite(magnitude), "x %g", (double)odd[i]);
            lattice_distance(x, NULL, 37, &distance, &magnitude);
            EXPECT(!isfinite(distance) && !isfinite(magnitude), "x %g", (double)odd[i]);
            x[at] = -5;
        }
    }
    lattice_distance(x, key, 0, &distance, &magnitude);
    EXPECT(distance == 0 && magnitude == 0, "nothing");
}

/* Failed decoding. */

/* Move some elements of the key by multiples of q steps: they decode differently. */
static void spoil(struct draw *d, float *key, const struct coded *c)
{
    size_t wrong = draw_word(d) % 4 ? 1 + draw_word(d) % 3 : c->count;
    float q = ldexpf(c->step, c->bits);
    float same = draw_word(d) % 2 ? q : -q;
    for (size_t k = 0; k < wrong; k++) {
        size_t at = wrong == c->count ? k : draw_word(d) % c->count;
        uint64_t kind = draw_word(d) % 4;
        float times = kind == 0 ? 1 : kind == 1 ? -1 : (float)(1 + draw_word(d) % 9);
        key[at] += kind == 3 ? same : times * q;
    }
}

/* Return whether the key is bad: opposite errors in key[at] may cancel. */
static bool is_spoiled(const struct coded *c, const float *key, const float *x)
{
    for (size_t i = 0; i < c->count; i++)
        if (fabsf(key[i] - x[i]) > ldexpf(c->step, c->bits - 1) * 1.01f)
            return true;
    return false;
}

/* All of more than 10^6 wrong decodes are detected. Fewer than one miss is expected. */
static void test_wrong_keys(void)
{
    struct draw d = {.stream = 5};
    uint64_t trials = 0, missed = 0;
    for (int round = 0; round < 80000; round++) {
        float x[32], key[32], y[32];
        size_t count = 1 + draw_word(&d) % 32;
        int bits = (const int[]){2, 4, 8, 8, 12, 16}[draw_word(&d) % 6];
        draw_block(&d, x, count, round % 3 ? 1 : 0.01f);
        float step = lattice_step(draw_scale(&d, -12, -2), 1, bits, false);
        struct coded c = encode(x, count, step, draw_word(&d), bits);
        for (int i = 0; i < 16; i++) {
            memcpy(key, x, count * sizeof *key);
            spoil(&d, key, &c);
            if (!is_spoiled(&c, key, x))
                continue;
            trials++;
            missed += decode(&c, key, false, y);
        }
        free(c.memory);
    }
    EXPECT(trials > 1000000 && !missed, "%llu of %llu wrong decodes missed",
           (unsigned long long)missed, (unsigned long long)trials);
}

static void flip(void *memory, uint64_t bit)
{
    ((unsigned char *)memory)[bit / 8] ^= (unsigned char)(1 << bit % 8);
}

/* Flip each bit of a plane, of the hash and of the decoding parameters. */
static void check_flips(size_t count, int bits)
{
    float x[LATTICE_BLOCK], y[LATTICE_BLOCK];
    struct draw d = {.stream = 6};
    draw_block(&d, x, count, 1);
    struct coded c = encode(x, count, 0.01f, 7, bits);
    for (uint64_t bit = 0; bit < 8 * plane_bytes(count, bits); bit++) {
        flip(c.low, bit);
        EXPECT(!decode(&c, x, false, y) && !decode(&c, x, true, y),
               "%zu elements, bit %d of the low plane", count, (int)bit);
        flip(c.low, bit);
    }
    for (uint64_t bit = 0; bit < 8 * plane_bytes(count, 16 - bits); bit++) {
        flip(c.high, bit);
        EXPECT(!decode(&c, x, true, y) && decode(&c, x, false, y),
               "%zu elements, bit %d of the high plane", count, (int)bit);
        flip(c.high, bit);
    }
    struct coded good = c;
    for (int bit = 0; bit < 64; bit++) {
        flip(&c.hash, (uint64_t)bit);
        EXPECT(!decode(&c, x, false, y), "the hash");
        c = good;
        flip(&c.seed, (uint64_t)bit);
        EXPECT(!decode(&c, x, false, y), "the seed");
        c = good;
        flip(&c.step, (uint64_t)bit % 32);
        EXPECT(!decode(&c, x, false, y), "the step");
        c = good;
    }
    free(c.memory);
}

static void test_flips(void)
{
    const size_t some[] = {1, 2, 3, 16, 17, 100};
    const int widths[] = {2, 3, 4, 8, 13, 16};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 6; k++)
            check_flips(some[i], widths[k]);
}

static float any_float(struct draw *d)
{
    uint32_t bits = (uint32_t)draw_word(d);
    float value;
    memcpy(&value, &bits, sizeof value);
    const float odd[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 1e-44f, 3.4e38f};
    return draw_word(d) % 2 ? value : odd[draw_word(d) % 7];
}

/* Arbitrary steps, keys and planes never decode by chance. */
static void test_any_bytes(void)
{
    struct draw d = {.stream = 8};
    char low[2048], high[2048];
    for (int round = 0; round < 20000; round++) {
        float key[64], y[64];
        for (size_t i = 0; i < sizeof low / 8; i++) {
            uint64_t word = draw_word(&d);
            memcpy(low + 8 * i, &word, 8);
            memcpy(high + 8 * i, &word, 8);
        }
        size_t count = 1 + draw_word(&d) % 64;
        int bits = 2 + (int)(draw_word(&d) % 15);
        for (size_t i = 0; i < count; i++)
            key[i] = any_float(&d);
        EXPECT(!lattice_decode(y, key, count, any_float(&d), draw_word(&d), bits, low,
                               round % 2 ? high : NULL, draw_word(&d)),
               "random bytes decode");
    }
}

/* NaN and infinite keys are too far. */
static void test_non_finite_keys(void)
{
    const float odd[] = {NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f};
    float x[100], key[100], y[100];
    struct draw d = {.stream = 9};
    draw_block(&d, x, 100, 1);
    struct coded c = encode(x, 100, 0.01f, 1, 8);
    for (size_t i = 0; i < 100 * 5; i++) {
        memcpy(key, x, sizeof x);
        key[i / 5] = odd[i % 5];
        EXPECT(!decode(&c, key, false, y), "a key with %g", (double)odd[i % 5]);
    }
    free(c.memory);
}

/* Rotation. */

static double dot(const float *x, const float *y, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* The rotation keeps lengths and angles, and can be undone. */
static void check_rotation(size_t count, uint64_t seed)
{
    float x[LATTICE_BLOCK], y[LATTICE_BLOCK], rx[LATTICE_BLOCK], ry[LATTICE_BLOCK];
    struct draw d = {.stream = seed};
    draw_block(&d, x, count, 1);
    draw_block(&d, y, count, 1);
    memcpy(rx, x, count * sizeof *x);
    memcpy(ry, y, count * sizeof *y);
    lattice_rotate(rx, rx, count, seed);
    lattice_rotate(ry, ry, count, seed);
    double allowed = 1e-5 * (1 + (double)count);
    EXPECT(fabs(dot(rx, rx, count) - dot(x, x, count)) < allowed &&
               fabs(dot(rx, ry, count) - dot(x, y, count)) < allowed,
           "%zu elements", count);
    lattice_rotate_back(rx, rx, count, seed);
    for (size_t i = 0; i < count; i++)
        EXPECT(fabsf(rx[i] - x[i]) < 1e-5f, "%zu elements: %zu is %g, was %g", count, i,
               (double)rx[i], (double)x[i]);
}

/* An outlier is spread evenly over its part of the block. Seeds differ. */
static void test_rotation(void)
{
    float x[LATTICE_BLOCK] = {0}, other[LATTICE_BLOCK] = {0};
    for (int i = 0; i < COUNTS; i++)
        for (uint64_t seed = 0; seed < 5; seed++)
            check_rotation(counts[i], seed);
    x[700] = other[700] = -32;
    x[3] = other[3] = 32;
    lattice_rotate(x, x, LATTICE_BLOCK, 1);
    lattice_rotate(other, other, LATTICE_BLOCK, 2);
    size_t same = 0;
    for (size_t i = 0; i < LATTICE_BLOCK; i++) {
        EXPECT(x[i] == 0 || fabsf(x[i]) == 2, "element %zu is %g", i, (double)x[i]);
        same += x[i] == other[i];
    }
    EXPECT(same < 900, "two seeds, %zu equal elements", same);
}

/* Payloads. */

static char *make_payload(const pcoll_lattice *l, const float *x, uint64_t *bytes)
{
    uint64_t blocks;
    EXPECT_OK(pcoll_lattice_size(l, bytes, &blocks));
    char *payload = malloc(*bytes);
    EXPECT_OK(pcoll_lattice_encode(l, x, NULL, NULL, 1, payload));
    return payload;
}

/* Return whether the payload is decoded without an error or a failed block. */
static bool payload_decodes(const char *payload, uint64_t bytes, float *out)
{
    uint8_t failed[4];
    uint64_t failures = 0;
    pcoll_lattice l;
    if (pcoll_lattice_look(payload, bytes, &l) != PCOLL_OK) {
        EXPECT(pcoll_lattice_decode(payload, bytes, NULL, out, failed, &failures) ==
                   PCOLL_EPROTOCOL,
               "looked at, refused, decoded");
        return false;
    }
    EXPECT_OK(pcoll_lattice_decode(payload, bytes, NULL, out, failed, &failures));
    return !failures;
}

/* The memory has exactly the payload's length: the sanitizer sees reads beyond it. */
static void check_truncated(const char *payload, uint64_t bytes)
{
    float out[2500];
    for (uint64_t left = 0; left < bytes; left += 1 + left / 7) {
        char *part = malloc(left);
        memcpy(part, payload, left);
        EXPECT(!payload_decodes(part, left, out), "%d bytes", (int)left);
        free(part);
    }
}

static void check_payload(const pcoll_lattice *l, uint64_t stride)
{
    float x[2500], out[2500], good[2500];
    struct draw d = {.stream = 10};
    draw_block(&d, x, l->count, 1);
    uint64_t bytes;
    char *payload = make_payload(l, x, &bytes);
    EXPECT(payload_decodes(payload, bytes, good), "%s", pcoll_last_error());
    check_truncated(payload, bytes);
    for (uint64_t bit = 0; bit < 8 * bytes; bit += bit < 800 ? 1 : stride) {
        flip(payload, bit);
        /* A high plane that is not needed may contain anything. */
        bool harmless = payload_decodes(payload, bytes, out) && l->high &&
                        !memcmp(out, good, l->count * sizeof *out);
        EXPECT(harmless || !payload_decodes(payload, bytes, out),
               "bit %d of a payload of %d bytes", (int)bit, (int)bytes);
        flip(payload, bit);
    }
    /* Half a step. If rotated: of a block with larger elements, and spread over it. */
    float most = (l->rotate ? 30.0f : 1.01f) / (float)((1 << l->bits) - 1) + 1e-5f;
    for (size_t i = 0; i < l->count; i++)
        EXPECT(fabsf(x[i] - good[i]) < most, "%d bits: %g, %g", l->bits, (double)x[i],
               (double)good[i]);
    free(payload);
}

static void test_payloads(void)
{
    const uint64_t sizes[] = {1, 17, 1024, 2500};
    for (int i = 0; i < 4; i++)
        for (int bits = 2; bits <= 16; bits += 2)
            for (int options = 0; options < 4; options++)
                check_payload(&(pcoll_lattice){.count = sizes[i],
                                               .seed = 3,
                                               .dtype = PCOLL_FLOAT32,
                                               .bits = bits,
                                               .high = options & 1,
                                               .rotate = options >> 1},
                              97);
    const pcoll_lattice bad[] = {{.bits = 1},
                                 {.bits = 17},
                                 {.bits = 8, .dtype = PCOLL_INT32},
                                 {.bits = 8, .count = (uint64_t)1 << 60}};
    uint64_t bytes, blocks;
    for (int i = 0; i < 4; i++)
        EXPECT(pcoll_lattice_size(&bad[i], &bytes, &blocks) == PCOLL_EINVAL, "%d", i);
}

/* A digest that is the same on all machines. */

static uint64_t digest(uint64_t sum, const void *memory, size_t bytes)
{
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++)
        sum = splitmix_mix(sum ^ at[i]) + 1;
    return sum;
}

static uint64_t digest_block(struct draw *d, uint64_t sum, size_t count, int bits)
{
    float x[LATTICE_BLOCK], key[LATTICE_BLOCK], y[LATTICE_BLOCK], numbers[2];
    draw_block(d, x, count, draw_scale(d, -40, 40));
    lattice_rotate(x, x, count, 3);
    draw_key(d, key, x, count, draw_scale(d, -40, 40));
    lattice_distance(x, key, count, numbers, numbers + 1);
    struct coded c =
        encode(x, count, lattice_step(numbers[0], numbers[1], bits, false), 11, bits);
    EXPECT(decode(&c, key, false, y), "%zu elements of %d bits", count, bits);
    lattice_rotate_back(y, y, count, 3);
    sum = digest(sum, numbers, sizeof numbers);
    sum = digest(sum, c.low, plane_bytes(count, bits));
    sum = digest(sum, c.high, plane_bytes(count, 16 - bits));
    sum = digest(digest(sum, &c.hash, sizeof c.hash), y, count * sizeof *y);
    free(c.memory);
    return sum;
}

/* This digest changes with the format. The version in lattice.c must change then as
 * well, so that payloads of different versions are not mixed up. */
static const uint64_t expected_digest = 0x2ac2fb9ce1041e73;

static void test_same_bits(void)
{
    struct draw d = {.stream = 12};
    uint64_t sum = 0;
    for (int bits = LATTICE_LEAST_BITS; bits <= LATTICE_MAX_BITS; bits++)
        for (int i = 0; i < COUNTS; i++)
            sum = digest_block(&d, sum, counts[i], bits);
    EXPECT(sum == expected_digest, "0x%llx", (unsigned long long)sum);
}

/* Return whether this processor can run code for the one that this was compiled for. */
static bool can_run(void)
{
#if defined(__AVX512F__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

int main(void)
{
    if (!can_run()) {
        puts("quantize: skipped, this processor lacks what it is compiled for");
        return 0;
    }
    test_sizes();
    test_planes();
    test_same_bits();
    test_step_is_least();
    test_round_trips();
    test_zeros();
    test_distance();
    test_flips();
    test_any_bytes();
    test_non_finite_keys();
    test_rotation();
    test_payloads();
    test_wrong_keys();
    puts("quantize: planes, certain decodes, errors, wrong keys, flipped bits, "
         "payloads");
    return 0;
}
