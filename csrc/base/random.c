/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash; see random.h. The names v0 to v3 are those of the specification. */
#include "base/random.h"

struct siphash_state {
    uint64_t v0, v1, v2, v3;
};

static uint64_t siphash_rotate(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

static void siphash_rounds(struct siphash_state *s, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = siphash_rotate(s->v1, 13) ^ s->v0;
        s->v3 = siphash_rotate(s->v3, 16) ^ s->v2;
        s->v0 = siphash_rotate(s->v0, 32);
        s->v2 += s->v1;
        s->v0 += s->v3;
        s->v1 = siphash_rotate(s->v1, 17) ^ s->v2;
        s->v3 = siphash_rotate(s->v3, 21) ^ s->v0;
        s->v2 = siphash_rotate(s->v2, 32);
    }
}

/* Read up to eight bytes as a little-endian number. */
static uint64_t siphash_word(const unsigned char *at, size_t bytes)
{
    uint64_t word = 0;
    for (size_t i = 0; i < bytes; i++)
        word |= (uint64_t)at[i] << 8 * i;
    return word;
}

static void siphash_absorb(struct siphash_state *s, uint64_t word)
{
    s->v3 ^= word;
    siphash_rounds(s, 2);
    s->v0 ^= word;
}

struct siphash_tag siphash_tag_of(struct siphash_key key, const void *data,
                                  size_t bytes)
{
    const unsigned char *at = data;
    struct siphash_tag tag;
    struct siphash_state s = {.v0 = key.word[0] ^ 0x736f6d6570736575u,
                              .v1 = key.word[1] ^ 0x646f72616e646f6du ^ 0xee,
                              .v2 = key.word[0] ^ 0x6c7967656e657261u,
                              .v3 = key.word[1] ^ 0x7465646279746573u};
    for (size_t i = 0; i + 8 <= bytes; i += 8)
        siphash_absorb(&s, siphash_word(at + i, 8));
    siphash_absorb(&s,
                   siphash_word(at + bytes / 8 * 8, bytes % 8) | (uint64_t)bytes << 56);
    s.v2 ^= 0xee;
    siphash_rounds(&s, 4);
    tag.word[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    siphash_rounds(&s, 4);
    tag.word[1] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return tag;
}

bool siphash_equal(struct siphash_tag a, struct siphash_tag b)
{
    return ((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1])) == 0;
}

struct siphash_key siphash_derive(struct siphash_key key, const void *data,
                                  size_t bytes)
{
    struct siphash_tag tag = siphash_tag_of(key, data, bytes);
    return (struct siphash_key){{tag.word[0], tag.word[1]}};
}
