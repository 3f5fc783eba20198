/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every op on every dtype against a reference that computes single values; the conversions of all
 * float16 and bfloat16 numbers; blocks, slots and slices; user-defined reductions.
 */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "kernels/payload.h"
#include "check.h"

/* A number of any dtype. */
struct number {
    enum { REAL, COMPLEX, SIGNED, UNSIGNED, TRUTH } kind;
    int bits;
    double re, im;
    uint64_t word; /* of integers and truth values, sign-extended */
};

static struct number kind_of(int dtype)
{
    const struct number kinds[REDUCE_DTYPES] = {
        [PCOLL_FLOAT32] = {REAL, 32},      [PCOLL_FLOAT64] = {REAL, 64},
        [PCOLL_FLOAT16] = {REAL, 32},      [PCOLL_BFLOAT16] = {REAL, 32},
        [PCOLL_COMPLEX64] = {COMPLEX, 32}, [PCOLL_COMPLEX128] = {COMPLEX, 64},
        [PCOLL_INT8] = {SIGNED, 8},        [PCOLL_INT16] = {SIGNED, 16},
        [PCOLL_INT32] = {SIGNED, 32},      [PCOLL_INT64] = {SIGNED, 64},
        [PCOLL_UINT8] = {UNSIGNED, 8},     [PCOLL_UINT16] = {UNSIGNED, 16},
        [PCOLL_UINT32] = {UNSIGNED, 32},   [PCOLL_UINT64] = {UNSIGNED, 64},
        [PCOLL_BOOL] = {TRUTH, 8},
    };
    return kinds[dtype];
}

static size_t held_size(int dtype)
{
    struct number n = kind_of(dtype);
    return (size_t)n.bits / 8 * (n.kind == COMPLEX ? 2 : 1);
}

static double load_real(const char *at, int bits)
{
    float single;
    double twice;
    memcpy(&single, at, sizeof single);
    if (bits == 32)
        return single;
    memcpy(&twice, at, sizeof twice);
    return twice;
}

static void store_real(char *at, int bits, double value)
{
    float single = (float)value;
    if (bits == 32)
        memcpy(at, &single, sizeof single);
    else
        memcpy(at, &value, sizeof value);
}

static struct number load(int dtype, const char *at)
{
    struct number n = kind_of(dtype);
    if (n.kind == REAL || n.kind == COMPLEX) {
        n.re = load_real(at, n.bits);
        n.im = n.kind == COMPLEX ? load_real(at + n.bits / 8, n.bits) : 0;
        return n;
    }
    memcpy(&n.word, at, (size_t)n.bits / 8); /* little-endian, like all test machines */
    if (n.kind == SIGNED && n.bits < 64 && n.word >> (n.bits - 1))
        n.word |= ~(uint64_t)0 << n.bits;
    return n;
}

static void store(struct number n, char *at)
{
    if (n.kind == REAL || n.kind == COMPLEX)
        store_real(at, n.bits, n.re);
    if (n.kind == COMPLEX)
        store_real(at + n.bits / 8, n.bits, n.im);
    if (n.kind != REAL && n.kind != COMPLEX)
        memcpy(at, &n.word, (size_t)n.bits / 8);
}

/* A double holds products of floats exactly, so rounding once gives the result of C. */
static double rounded(const struct number *n, double value)
{
    return n->bits == 32 ? (float)value : value;
}

static bool less(const struct number *a, const struct number *b)
{
    if (a->kind == REAL)
        return a->re < b->re;
    return a->kind == SIGNED ? (int64_t)a->word < (int64_t)b->word : a->word < b->word;
}

static struct number multiply(struct number a, struct number b)
{
    struct number out = a;
    out.word = a.word * b.word;
    out.re = rounded(&a, rounded(&a, a.re * b.re) - rounded(&a, a.im * b.im));
    out.im = rounded(&a, rounded(&a, a.re * b.im) + rounded(&a, a.im * b.re));
    if (a.kind == REAL)
        out.re = rounded(&a, a.re * b.re);
    return out;
}

static struct number reference(int op, struct number a, struct number b)
{
    struct number out = a;
    switch ((enum pcoll_op)op) {
    case PCOLL_SUM:
        out.re = rounded(&a, a.re + b.re);
        out.im = rounded(&a, a.im + b.im);
        out.word = a.word + b.word;
        break;
    case PCOLL_PROD:
        return multiply(a, b);
    case PCOLL_MIN:
        return less(&b, &a) ? b : a;
    case PCOLL_MAX:
        return less(&a, &b) ? b : a;
    case PCOLL_LAND:
        out.word = a.word && b.word;
        break;
    case PCOLL_LOR:
        out.word = a.word || b.word;
        break;
    case PCOLL_LXOR:
        out.word = !a.word != !b.word;
        break;
    case PCOLL_BAND:
        out.word = a.word & b.word;
        break;
    case PCOLL_BOR:
        out.word = a.word | b.word;
        break;
    case PCOLL_BXOR:
        out.word = a.word ^ b.word;
        break;
    case PCOLL_MPI_OP:
        EXPECT(false, "not one of ours");
    }
    return out;
}

/* The combinations that MPI allows. */
static bool is_legal(int op, int dtype)
{
    switch (kind_of(dtype).kind) {
    case REAL:
        return op <= PCOLL_MAX;
    case COMPLEX:
        return op <= PCOLL_PROD;
    case SIGNED:
    case UNSIGNED:
        return true;
    case TRUTH:
        return op == PCOLL_LAND || op == PCOLL_LOR || op == PCOLL_LXOR;
    }
    return false;
}

/* Small numbers and zeros. Integers may have any bits. */
static void draw(int dtype, char *at, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++, at += held_size(dtype)) {
        uint64_t bits = splitmix_mix(seed + i);
        struct number n = kind_of(dtype);
        n.re = ((double)(bits % 2001) - 1000) / 7;
        n.im = ((double)(bits / 2001 % 2001) - 1000) / 3;
        n.word = bits % 5 == 0 ? 0 : bits >> 8;
        if (n.kind == TRUTH)
            n.word = bits % 2;
        store(n, at);
    }
}

enum alias { APART, OUT_IS_A, OUT_IS_B, ALIASES };

static void check_reduce(int op, int dtype, size_t count, enum alias alias)
{
    size_t size = held_size(dtype), bytes = count * size;
    char *a = malloc(bytes + 1), *b = malloc(bytes + 1), *c = malloc(bytes + 1);
    char *expected = malloc(bytes + 1);
    draw(dtype, a, count, (uint64_t)op << 32);
    draw(dtype, b, count, (uint64_t)dtype << 40);
    for (size_t i = 0; i < count; i++)
        store(reference(op, load(dtype, a + i * size), load(dtype, b + i * size)),
              expected + i * size);
    char *out = alias == OUT_IS_A ? a : alias == OUT_IS_B ? b : c;
    out[bytes] = 77;
    reduce_kernel(op, dtype)(out, a, b, count);
    EXPECT(!memcmp(out, expected, bytes), "%s of %s, %zu elements, alias %d",
           op_names[op], dtype_names[dtype], count, alias);
    EXPECT(out[bytes] == 77, "%s of %s writes beyond its end", op_names[op],
           dtype_names[dtype]);
    free(a);
    free(b);
    free(c);
    free(expected);
}

/* x op identity = x, in the application's form. */
static void check_identity(int op, int dtype)
{
    enum { COUNT = 37 };
    struct payload p;
    const pcoll_buffer buffer = {.count = COUNT, .dtype = dtype, .op = op};
    EXPECT_OK(payload_init(&p, &buffer, 1, NULL));
    char *x = malloc(p.bytes), *e = malloc(p.bytes), *out = malloc(p.bytes);
    char neutral[COUNT * 16];
    payload_identity(&p, (void *const[]){neutral});
    payload_pack(&p, e, (const void *const[]){neutral});
    draw(dtype, x, COUNT, 5);
    /* Logical ops turn any true value into 1. */
    bool logical = op >= PCOLL_LAND && op <= PCOLL_LXOR;
    for (size_t i = 0; logical && i < p.part->bytes; i++)
        x[i] = i % p.part->element == 0 && i % 3 == 0;
    EXPECT_OK(payload_reduce(&p, out, x, e));
    EXPECT(!memcmp(out, x, p.part->bytes), "%s of %s: x op identity is not x",
           op_names[op], dtype_names[dtype]);
    free(x);
    free(e);
    free(out);
    payload_destroy(&p);
}

static void test_ops(void)
{
    const size_t counts[] = {0, 1, 2, 3, 17, 1009, 100003};
    for (int op = 0; op < REDUCE_OPS; op++)
        for (int dtype = 0; dtype < REDUCE_DTYPES; dtype++) {
            bool legal = is_legal(op, dtype);
            EXPECT(!reduce_kernel(op, dtype) == !legal &&
                       !dtype_find(dtype)->identity[op] == !legal &&
                       (pcoll_op_check(op, dtype) == PCOLL_OK) == legal,
                   "%s of %s", op_names[op], dtype_names[dtype]);
            for (int i = 0; legal && i < 7 * ALIASES; i++)
                check_reduce(op, dtype, counts[i / ALIASES], i % ALIASES);
            if (legal)
                check_identity(op, dtype);
        }
    EXPECT(pcoll_op_check(PCOLL_MIN, PCOLL_COMPLEX64) == PCOLL_EINVAL &&
               strstr(pcoll_last_error(), "SUM or PROD for complex64, got MIN"),
           "%s", pcoll_last_error());
    EXPECT(pcoll_op_check(-1, 0) && pcoll_op_check(0, -1) &&
               pcoll_op_check(REDUCE_OPS, 0) && pcoll_op_check(0, REDUCE_DTYPES),
           "unknown ops and dtypes");
}

/* reduce.h specifies: a NaN on the left stays, and one on the right is ignored. */
static void test_nan(void)
{
    const float left[2] = {NAN, 3}, right[2] = {3, NAN};
    float out[2];
    for (int op = PCOLL_MIN; op <= PCOLL_MAX; op++) {
        reduce_kernel(op, PCOLL_FLOAT32)(out, left, right, 2);
        EXPECT(isnan(out[0]) && out[1] == 3, "%g %g", out[0], out[1]);
    }
}

/* Conversions. */

static double float16_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double size =
        exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    if (exponent == 31)
        size = mantissa ? NAN : INFINITY;
    return h & 0x8000 ? -size : size;
}

static double bfloat16_value(uint16_t h)
{
    int exponent = h >> 7 & 255, mantissa = h & 127;
    double size =
        exponent ? ldexp(128 + mantissa, exponent - 134) : ldexp(mantissa, -133);
    if (exponent == 255)
        size = mantissa ? NAN : INFINITY;
    return h & 0x8000 ? -size : size;
}

static uint16_t narrow(int dtype, double value)
{
    float single = (float)value;
    uint16_t out;
    dtype_find(dtype)->narrow(&out, &single, 1);
    return out;
}

static void check_narrow(int dtype, float value, uint16_t expected)
{
    uint16_t got = narrow(dtype, value), minus = narrow(dtype, -value);
    EXPECT(got == expected && minus == (expected | 0x8000),
           "%s: %a: %04x, expected %04x", dtype_names[dtype], (double)value, got,
           expected);
}

/* All numbers convert back unchanged; midpoints between neighbors round to even. */
static void check_half(int dtype, double (*value_of)(uint16_t), uint16_t infinity)
{
    for (uint32_t h = 0; h <= UINT16_MAX; h++) {
        float wide;
        uint16_t half = (uint16_t)h;
        dtype_find(dtype)->widen(&wide, &half, 1);
        double expected = value_of(half);
        bool nan = isnan(expected);
        EXPECT(nan ? isnan(wide) : wide == expected && !signbit(wide) == !(h & 0x8000),
               "%s %04x: %g, expected %g", dtype_names[dtype], h, (double)wide,
               expected);
        uint16_t back = narrow(dtype, wide);
        EXPECT(nan ? isnan(value_of(back)) && (back & 0x8000) == (h & 0x8000)
                   : back == half,
               "%s %04x comes back as %04x", dtype_names[dtype], h, back);
    }
    for (uint16_t h = 0; h < infinity; h++) {
        double above = value_of(h + 1);
        if (h + 1 == infinity) /* the next number, if it existed */
            above = value_of(h) + (value_of(h) - value_of(h - 1));
        float middle = (float)((value_of(h) + above) / 2);
        uint16_t even = h % 2 ? h + 1 : h;
        check_narrow(dtype, middle, even);
        check_narrow(dtype, nextafterf(middle, 0), h);
        check_narrow(dtype, nextafterf(middle, INFINITY), h + 1);
    }
    check_narrow(dtype, INFINITY, infinity);
    check_narrow(dtype, 3.4028234663852886e38f, infinity);
    EXPECT(isnan(value_of(narrow(dtype, NAN))), "NaN");
}

static void test_conversions(void)
{
    check_half(PCOLL_FLOAT16, float16_value, 0x7c00);
    check_half(PCOLL_BFLOAT16, bfloat16_value, 0x7f80);
    /* A NaN whose mantissa is only in the bits that are cut off. */
    uint32_t bits = 0x7f800001;
    float nan;
    memcpy(&nan, &bits, sizeof nan);
    EXPECT(isnan(float16_value(narrow(PCOLL_FLOAT16, (double)nan))), "float16");
    uint16_t out;
    dtype_find(PCOLL_BFLOAT16)->narrow(&out, &nan, 1);
    EXPECT(isnan(bfloat16_value(out)), "bfloat16");
}

/* Blocks. */

/* A reduction that is not commutative: inout = 31 left + inout, byte by byte. */
struct fake {
    struct user_reduction base;
    int calls, fail_at;
};

static int fake_combine(struct user_reduction *user, void *inout, const void *left,
                        size_t count)
{
    struct fake *fake = (struct fake *)user;
    unsigned char *to = inout;
    const unsigned char *from = left;
    EXPECT(to != from, "combine may not be given one operand twice");
    for (size_t i = 0; i < count * user->element; i++)
        to[i] = (unsigned char)(31 * from[i] + to[i]);
    return ++fake->calls == fake->fail_at ? fail(PCOLL_EMPI, "as requested") : PCOLL_OK;
}

static int frees;

static void fake_free(struct user_reduction *user)
{
    frees++;
    free(user);
}

/* The datatype's address stands for the element size. */
static int make_fake(const pcoll_buffer *buffer, int index, struct user_reduction **out)
{
    (void)index;
    size_t element = *(const size_t *)buffer->mpi_type;
    if (!element)
        return fail(PCOLL_EINVAL, "an element of no size");
    struct fake *fake = calloc(1, sizeof *fake);
    fake->base = (struct user_reduction){
        .element = element, .combine = fake_combine, .free = fake_free};
    *out = &fake->base;
    return PCOLL_OK;
}

static void check_user(size_t element, size_t count)
{
    struct fake fake = {.base = {.element = element, .combine = fake_combine}};
    size_t bytes = element * count;
    unsigned char *a = malloc(bytes + 1), *b = malloc(bytes + 1),
                  *c = malloc(bytes + 1);
    for (int alias = APART; alias < ALIASES; alias++) {
        for (size_t i = 0; i < bytes; i++) {
            a[i] = (unsigned char)splitmix_mix(i);
            b[i] = (unsigned char)splitmix_mix(i + bytes);
        }
        unsigned char *out = alias == OUT_IS_A ? a : alias == OUT_IS_B ? b : c;
        EXPECT_OK(user_reduce(&fake.base, out, a, b, count));
        for (size_t i = 0; i < bytes; i++) {
            unsigned char left = (unsigned char)splitmix_mix(i);
            unsigned char right = (unsigned char)splitmix_mix(i + bytes);
            EXPECT(out[i] == (unsigned char)(31 * left + right),
                   "%zu elements of %zu bytes, alias %d: byte %zu", count, element,
                   alias, i);
        }
    }
    free(a);
    free(b);
    free(c);
}

static void test_user_reduction(void)
{
    const size_t elements[] = {1, 8, 12, 24, 4096, 100000};
    for (int i = 0; i < 6; i++)
        for (size_t count = 0; count < 6; count++)
            check_user(elements[i], count);
    check_user(24, 10007); /* several pieces of scratch, the last one short */
    struct fake fake = {.base = {.element = 1 << 16, .combine = fake_combine},
                        .fail_at = 2};
    char *a = calloc(4, 1 << 16), *b = calloc(4, 1 << 16);
    EXPECT(user_reduce(&fake.base, a, a, b, 4) == PCOLL_EMPI && fake.calls == 2,
           "a failure ends it");
    free(a);
    free(b);
}

static const size_t size_24 = 24, size_0 = 0;

/* A handle of several dtypes and ops. */
static void init_mixed(struct payload *p)
{
    const pcoll_buffer buffers[] = {
        {.count = 2500, .dtype = PCOLL_FLOAT16, .op = PCOLL_SUM},
        {.count = 77, .dtype = PCOLL_INT8, .op = PCOLL_BXOR},
        {.count = 100,
         .dtype = PCOLL_MPI_TYPE,
         .op = PCOLL_MPI_OP,
         .mpi_type = &size_24},
        {.count = 0, .dtype = PCOLL_COMPLEX128, .op = PCOLL_PROD},
        {.count = 1024, .dtype = PCOLL_BFLOAT16, .op = PCOLL_MAX},
    };
    EXPECT_OK(payload_init(p, buffers, 5, make_fake));
    EXPECT(p->part[0].bytes == 10000 && p->part[2].element == 24 && !p->part[3].bytes,
           "float16 is held as float32");
}

static void fill(char *at, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (char)(splitmix_mix(seed + i) & 0x3f); /* as float16: small, no NaN */
}

/* Packing and filling a slot in place give the same block, also after a carry. */
static void test_slot(void)
{
    struct payload p;
    init_mixed(&p);
    char *send[5], *packed = calloc(1, p.bytes), *slot = calloc(1, p.bytes);
    char *first = calloc(1, p.bytes), *second = calloc(1, p.bytes);
    const size_t narrow_bytes[] = {5000, 77, 2400, 0, 2048};
    for (int i = 0; i < 5; i++) {
        send[i] = malloc(narrow_bytes[i] + 1);
        fill(send[i], narrow_bytes[i], (uint64_t)i);
        memcpy(slot + p.part[i].offset, send[i], narrow_bytes[i]);
    }
    payload_pack(&p, packed, (const void *const *)send);
    EXPECT_OK(payload_reduce(&p, first, packed, packed));
    EXPECT_OK(payload_reduce_buffers(&p, second, packed, (const void *const *)send));
    EXPECT(!memcmp(first, second, p.bytes), "reduce_buffers");
    memset(second, 0, p.bytes);
    EXPECT_OK(payload_reduce_slot(&p, second, packed, slot));
    EXPECT(!memcmp(first, second, p.bytes), "reduce_slot");
    payload_pack_slot(&p, slot);
    for (int i = 0; i < 5; i++)
        EXPECT(!memcmp(slot + p.part[i].offset, packed + p.part[i].offset,
                       p.part[i].bytes),
               "the slot's part %d", i);
    char *recv[5];
    for (int i = 0; i < 5; i++)
        recv[i] = malloc(narrow_bytes[i] + 1);
    payload_unpack(&p, (void *const *)recv, packed);
    for (int i = 0; i < 5; i++) {
        EXPECT(!memcmp(recv[i], send[i], narrow_bytes[i]), "part %d there and back", i);
        free(recv[i]);
        free(send[i]);
    }
    free(packed);
    free(slot);
    free(first);
    free(second);
    payload_destroy(&p);
}

/* 2048 + 1 + 1 is 2050. Rounding after each step would give 2048. */
static void test_rounded_once(void)
{
    const pcoll_buffer buffer = {.count = 1, .dtype = PCOLL_FLOAT16, .op = PCOLL_SUM};
    struct payload p;
    EXPECT_OK(payload_init(&p, &buffer, 1, NULL));
    uint16_t large = narrow(PCOLL_FLOAT16, 2048), one = narrow(PCOLL_FLOAT16, 1), out;
    float block[16];
    payload_pack(&p, block, (const void *const[]){&large});
    for (int i = 0; i < 2; i++)
        EXPECT_OK(
            payload_reduce_buffers(&p, block, block, (const void *const[]){&one}));
    payload_unpack(&p, (void *const[]){&out}, block);
    EXPECT(float16_value(out) == 2050, "%g", float16_value(out));
    payload_destroy(&p);
}

/* Slice by slice gives the same result as at once, and no slice splits an element. */
static void check_slices(const struct payload *p, uint32_t of)
{
    char *a = malloc(p->bytes + 1), *b = malloc(p->bytes + 1);
    char *whole = calloc(1, p->bytes + 1), *sliced = calloc(1, p->bytes + 1);
    fill(a, p->bytes, 1);
    fill(b, p->bytes, 2);
    EXPECT_OK(payload_reduce(p, whole, a, b));
    EXPECT(payload_cut(p, 0, of) == 0 && payload_cut(p, of, of) == p->bytes,
           "the ends");
    for (uint32_t i = 0; i < of; i++) {
        size_t begin = payload_cut(p, i, of), end = payload_cut(p, i + 1, of);
        EXPECT(begin <= end && begin % 64 == 0, "cut %u of %u at %zu", i, of, begin);
        for (int k = 0; k < p->parts; k++) {
            const struct payload_part *part = &p->part[k];
            bool inside = begin > part->offset && begin < part->offset + part->bytes;
            EXPECT(!inside || (begin - part->offset) % part->element == 0,
                   "cut %u of %u is inside an element", i, of);
        }
        EXPECT_OK(
            payload_reduce_slice(p, sliced + begin, a + begin, b + begin, begin, end));
    }
    for (int k = 0; k < p->parts; k++)
        EXPECT(!memcmp(whole + p->part[k].offset, sliced + p->part[k].offset,
                       p->part[k].bytes),
               "%u slices: part %d", of, k);
    free(a);
    free(b);
    free(whole);
    free(sliced);
}

static void test_slices(void)
{
    struct payload p;
    init_mixed(&p);
    EXPECT(!payload_evenly_cut(&p), "24 does not divide 64");
    for (uint32_t of = 1; of < 40; of++)
        check_slices(&p, of);
    check_slices(&p, 1000);
    payload_destroy(&p);
    const pcoll_buffer even[] = {
        {.count = 100, .dtype = PCOLL_COMPLEX128, .op = PCOLL_SUM},
        {.count = 3, .dtype = PCOLL_BOOL, .op = PCOLL_LOR}};
    EXPECT_OK(payload_init(&p, even, 2, NULL));
    EXPECT(payload_evenly_cut(&p), "16 and 1 divide 64");
    for (uint32_t of = 1; of < 9; of++)
        check_slices(&p, of);
    payload_destroy(&p);
}

static void check_refused(pcoll_buffer buffer, user_reduction_fn *make,
                          const char *text)
{
    struct payload p;
    const pcoll_buffer both[] = {
        {.count = 1, .dtype = PCOLL_MPI_TYPE, .op = PCOLL_SUM, .mpi_type = &size_24},
        buffer};
    int before = frees;
    int rc =
        make ? payload_init(&p, both, 2, make) : payload_init(&p, both + 1, 1, make);
    EXPECT(rc == PCOLL_EINVAL && strstr(pcoll_last_error(), text), "%d: %s", rc,
           pcoll_last_error());
    EXPECT(frees == before + (make != NULL), "what was made is freed");
}

static void test_refused(void)
{
    check_refused((pcoll_buffer){.count = 1, .dtype = PCOLL_BOOL, .op = PCOLL_SUM},
                  make_fake,
                  "buffer 1: op: expected LAND, LOR or LXOR for bool, got SUM");
    check_refused((pcoll_buffer){.count = 1, .dtype = PCOLL_FLOAT16, .op = PCOLL_BAND},
                  make_fake, "SUM, PROD, MIN or MAX for float16");
    check_refused((pcoll_buffer){.count = 1, .dtype = 99}, NULL,
                  "dtype: unknown value 99");
    check_refused((pcoll_buffer){.count = 1, .op = -1}, NULL, "op: unknown value -1");
    check_refused((pcoll_buffer){.count = 1, .op = PCOLL_MPI_OP}, NULL, "needs MPI");
    check_refused((pcoll_buffer){.dtype = PCOLL_MPI_TYPE, .mpi_type = &size_0},
                  make_fake, "no size");
    check_refused((pcoll_buffer){.count = (uint64_t)1 << 62,
                                 .dtype = PCOLL_BOOL,
                                 .op = PCOLL_LOR},
                  make_fake, "more than can be held");
}

/* A round without contributions leaves the buffers of user reductions alone. */
static void test_no_identity(void)
{
    const pcoll_buffer buffers[] = {
        {.count = 1, .dtype = PCOLL_INT32, .op = PCOLL_SUM},
        {.count = 1, .dtype = PCOLL_MPI_TYPE, .op = PCOLL_SUM, .mpi_type = &size_24}};
    struct payload p;
    EXPECT_OK(payload_init(&p, buffers, 2, make_fake));
    int32_t number = 7;
    char other[24];
    memset(other, 42, sizeof other);
    payload_identity(&p, (void *const[]){&number, other});
    EXPECT(number == 0 && other[0] == 42 && other[23] == 42, "%d %d", number, other[0]);
    payload_destroy(&p);
}

int main(void)
{
    test_ops();
    test_nan();
    test_conversions();
    test_user_reduction();
    test_slot();
    test_rounded_once();
    test_slices();
    test_refused();
    test_no_identity();
    puts("kernels: all ops and dtypes, conversions, slots, slices, user reductions");
    return 0;
}
