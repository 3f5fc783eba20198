/* SPDX-License-Identifier: Apache-2.0 */
#include "narrator.h"

#include <stdarg.h>
#include <string.h>

#include "allreduce/control.h"
#include "check.h"
#include "scenario.h"

enum { TEXT = 200 };

static FILE *out;
static struct sim *sim;
static struct endpoint *followed[SCENARIO_RANKS];
/* What they do without us. */
static const struct transport_ops *wire;
static struct transport_ops told_wire;
static const struct domain_ops *domain[SCENARIO_RANKS];
static struct domain_ops told_domain[SCENARIO_RANKS];

void narrate(uint32_t rank, const char *format, ...)
{
    va_list arguments;
    fprintf(out, "%8.1f  rank %u ", (double)sim_now(sim) / 1e3, rank);
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    fputc('\n', out);
}

const char *narrator_set(const uint64_t *set, uint32_t ranks)
{
    static char text[TEXT];
    int used = 0;
    for (uint32_t r = 0; r < ranks; r++)
        if (bitset_has(set, r))
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%u",
                             used ? " " : "", r);
    text[used] = 0;
    return text;
}

static const char *sum_of(uint32_t ranks, const struct round_header *h,
                          const void *payload)
{
    static char text[2 * TEXT];
    double first;
    if (round_is_null(h, ranks))
        return "nothing";
    memcpy(&first, payload, sizeof first);
    uint64_t active[TEXT / 64] = {0};
    round_apply(h, ranks, ROUND_ACTIVE, active, true);
    snprintf(text, sizeof text, "%g of rank%s %s", first,
             bitset_count(active, bitset_words(ranks)) > 1 ? "s" : "",
             narrator_set(active, ranks));
    return text;
}

const char *narrator_sum(const struct endpoint *v, const struct round_header *h)
{
    return sum_of(v->shape.ranks, h, message_payload(h));
}

/* The sum in a message, whose header follows the data. */
static const char *message_sum(const struct endpoint *v, const char *data, size_t bytes)
{
    static struct round_header header[TEXT / sizeof(struct round_header)];
    uint32_t ranks = v->shape.ranks;
    const struct round_header *last = (const struct round_header *)(data + bytes) - 1;
    size_t wire = round_header_length(last, ranks);
    uint64_t round = last->round;
    struct round_header *h = header + sizeof header / sizeof *header - 1;
    CHECK(round_header_bytes(ranks) <= sizeof header);
    CHECK(round_header_decode(h, data + bytes - wire, wire, ranks, round) == PCOLL_OK);
    return sum_of(ranks, h, data);
}

static int send(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                size_t bytes, uint64_t cookie)
{
    const struct endpoint *v = followed[t->rank];
    if (v->data.plan.algorithm == PCOLL_ALGORITHM_RECDBL) /* messages are whole */
        narrate(t->rank, "-> rank %u: %s", peer, message_sum(v, data, bytes));
    else
        narrate(t->rank, "-> rank %u: a part of the data, %zu bytes", peer, bytes);
    return wire->send(t, peer, tag, data, bytes, cookie);
}

static int control(struct transport *t, uint32_t peer, const struct control *m)
{
    unsigned long long round = m->round;
    switch ((enum control_kind)m->kind) {
    case CONTROL_ACTIVATE:
        narrate(t->rank, "-> rank %u: activates round %llu", peer, round);
        break;
    case CONTROL_REPORT:
        narrate(t->rank, "-> rank %u: reports for round %llu: %u arrived, %u drawn",
                peer, round, (unsigned)(m->value[0] >> 32), (unsigned)m->value[0]);
        break;
    case CONTROL_LAST:
        narrate(t->rank, "-> rank %u: sends nothing any more", peer);
        break;
    default:
        narrate(t->rank, "-> rank %u: control message %u", peer, m->kind);
    }
    return wire->control(t, peer, m);
}

static struct endpoint *endpoint_of(const struct domain *d)
{
    for (uint32_t r = 0; r < SCENARIO_RANKS; r++)
        if (followed[r] && followed[r]->domain == d)
            return followed[r];
    EXPECT(false, "nobody's domain");
    return NULL;
}

static uint32_t rank_of(const struct endpoint *v)
{
    return v->communicator->transport->rank;
}

static void told_frozen(uint32_t rank, uint64_t round, bool null)
{
    narrate(rank, null ? "has nothing in round %llu" : "has its deposit in round %llu",
            (unsigned long long)round);
}

void narrator_frozen(void *arg, uint32_t rank, uint64_t round,
                     const struct round_header *h, const void *payload)
{
    (void)arg;
    (void)h;
    told_frozen(rank, round, !payload);
}

static struct round_header *freeze(struct domain *d, uint64_t round)
{
    struct endpoint *v = endpoint_of(d);
    uint32_t rank = rank_of(v);
    struct round_header *h = domain[rank]->freeze(d, round);
    if (h && v->initiator != ROUND_NOBODY)
        narrate(rank, "starts round %llu", (unsigned long long)round);
    if (h && v->placement.members == 1)
        told_frozen(rank, round, round_is_null(h, v->shape.ranks));
    return h;
}

static void publish(struct domain *d, uint64_t round)
{
    const struct endpoint *v = endpoint_of(d);
    uint32_t rank = rank_of(v);
    narrate(rank, "completes round %llu: %s", (unsigned long long)round,
            narrator_sum(v, domain[rank]->result(d, round)));
    domain[rank]->publish(d, round);
}

void narrator_begin(FILE *stream, struct sim *s)
{
    out = stream;
    sim = s;
    memset(followed, 0, sizeof followed);
}

struct transport *narrator_transport(uint32_t rank)
{
    struct transport *t = sim_endpoint(sim, rank);
    if (t->ops != &told_wire) {
        wire = t->ops;
        told_wire = *wire;
        told_wire.send = send;
        told_wire.control = control;
        t->ops = &told_wire;
    }
    return t;
}

void narrator_follow(struct endpoint *v)
{
    uint32_t rank = rank_of(v);
    followed[rank] = v;
    domain[rank] = v->domain->ops;
    told_domain[rank] = *v->domain->ops;
    if (told_domain[rank].freeze)
        told_domain[rank].freeze = freeze;
    if (told_domain[rank].publish)
        told_domain[rank].publish = publish;
    v->domain->ops = &told_domain[rank];
}
