/* SPDX-License-Identifier: Apache-2.0 */
/* The form of a handle's messages, and reading their headers. */
#include "domain/domain.h"

#include <stdlib.h>

#include "base/error.h"
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

void round_describe(const struct round_shape *shape, const struct round_header *h,
                    pcoll_round *round, uint64_t *masks)
{
    size_t words = bitset_words(shape->ranks);
    uint32_t active = round_count(h, shape->ranks, ROUND_ACTIVE);
    INTERLEAVE(); /* between two loads that have to fit together */
    *round = (pcoll_round){
        .index = h->round,
        .active = active,
        .stored = round_count(h, shape->ranks, ROUND_STORED),
        .initiator = h->initiator == ROUND_NOBODY ? -1 : (int32_t)h->initiator,
        .below_quorum = h->flags & ROUND_BELOW_QUORUM,
        .failed = round_count(h, shape->ranks, ROUND_FAILED),
        .differ = round_intents_differ(h->intent),
    };
    if (!masks)
        return;
    bitset_clear(masks, 3 * words);
    round_apply(h, shape->ranks, ROUND_ACTIVE, masks, true);
    round_apply(h, shape->ranks, ROUND_STORED, masks + words, true);
    round_apply(h, shape->ranks, ROUND_FAILED, masks + 2 * words, true);
}
