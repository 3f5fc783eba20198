/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that come, checked; see wire.h. Each kind has one decoder. */
#include "group/wire.h"

#include "base/error.h"
#include "transport/transport.h"

static int group_wire_refuse(const struct control *c, uint32_t source, const char *why)
{
    return fail(PCOLL_EPROTOCOL,
                "rank %u sent a grouped allreduce a message of kind %u that cannot be: "
                "%s",
                source, c->kind, why);
}

static int group_wire_decode_name(const struct control *c, uint32_t ranks,
                                  struct group_message *m)
{
    m->name = group_wire_name_of(c->value[0]);
    return m->name.leader < ranks && m->name.seq
               ? PCOLL_OK
               : group_wire_refuse(c, m->source, "the name of its group");
}

/* One of two bits, in the second word. */
static int group_wire_decode_bit(const struct control *c, uint32_t ranks, uint64_t a,
                                 uint64_t b, struct group_message *m)
{
    uint64_t bits = c->value[1];
    if (bits != a && bits != b)
        return group_wire_refuse(c, m->source, "what it says of its group");
    m->bits = (uint32_t)bits;
    return group_wire_decode_name(c, ranks, m);
}

static int group_wire_decode_part(const struct control *c, uint32_t ranks,
                                  struct group_message *m)
{
    if (c->value[1] > UINT32_MAX)
        return group_wire_refuse(c, m->source, "its rate");
    m->bits = NOTICE_PART;
    m->rate = (uint32_t)c->value[1];
    return group_wire_decode_name(c, ranks, m);
}

static int group_wire_decode_vote(const struct control *c, uint32_t self,
                                  uint32_t ranks, struct group_message *m)
{
    uint64_t vote = c->value[1], members = c->value[2];
    int rc = group_wire_decode_name(c, ranks, m);
    if (rc != PCOLL_OK)
        return rc;
    if (m->name.leader != self || vote > VOTE_ABORT)
        return group_wire_refuse(c, m->source, "its vote");
    if ((members < 1 || members > ranks) &&
        (members != UINT32_MAX || vote != VOTE_ABORT))
        return group_wire_refuse(c, m->source, "the number of members");
    m->vote = (enum decision_vote)vote;
    m->members = (uint32_t)members;
    return PCOLL_OK;
}

static int group_wire_decode_returns(const struct control *c, uint64_t returns,
                                     struct group_message *m)
{
    if (returns > UINT32_MAX)
        return group_wire_refuse(c, m->source, "the number of returns");
    m->returns = (uint32_t)returns;
    return PCOLL_OK;
}

/* That a rank is silent is said by others, everything else by itself. */
static int group_wire_decode_membership(const struct control *c, uint32_t ranks,
                                        struct group_message *m)
{
    uint64_t rank = c->value[0], status = c->value[1];
    if (rank >= ranks || status > MEMBER_SUSPECT)
        return group_wire_refuse(c, m->source, "the rank or its status");
    if ((rank == m->source) == (status == MEMBER_SUSPECT))
        return group_wire_refuse(c, m->source, "who says it");
    m->rank = (uint32_t)rank;
    m->status = (enum member_status)status;
    return group_wire_decode_returns(c, c->value[2], m);
}

static int group_wire_decode_nudge(const struct control *c, struct group_message *m)
{
    m->application = c->value[0] == 1;
    return c->value[0] <= 1 ? PCOLL_OK : group_wire_refuse(c, m->source, "a flag");
}

static int group_wire_decode_count(const struct control *c, struct group_message *m)
{
    uint64_t more = c->value[0];
    m->more = (int32_t)more;
    return more + 1 <= 2 ? PCOLL_OK : group_wire_refuse(c, m->source, "how many more");
}

static int group_wire_decode_counted(const struct control *c, uint32_t ranks,
                                     struct group_message *m)
{
    if (c->edge > 1 || c->value[0] > ranks)
        return group_wire_refuse(c, m->source, "how many ranks");
    m->counts = c->edge == 1;
    m->count = (uint32_t)c->value[0];
    return PCOLL_OK;
}

static int group_wire_decode_found(const struct control *c, uint32_t ranks,
                                   struct group_message *m)
{
    uint64_t all = c->value[0];
    const uint32_t peer[FOUND_ENTRIES] = {(uint32_t)(c->value[1] >> 32),
                                          (uint32_t)c->value[1]};
    if (all > ranks || c->edge > FOUND_ENTRIES || c->edge > all || (all && !c->edge))
        return group_wire_refuse(c, m->source, "how many entries");
    m->count = (uint32_t)all;
    m->entries = c->edge;
    for (uint32_t i = 0; i < m->entries; i++) {
        if (peer[i] >= ranks)
            return group_wire_refuse(c, m->source, "the rank of an entry");
        m->entry[i] =
            (struct match_entry){.peer = peer[i], .time = (int64_t)c->value[2 + i]};
    }
    return PCOLL_OK;
}

int group_wire_decode(uint32_t self, uint32_t ranks, uint32_t source,
                      const struct control *c, struct group_message *m)
{
    *m = (struct group_message){
        .kind = (enum group_wire_kind)c->kind, .source = source, .round = c->round};
    if (c->round > ROUND_LAST)
        return group_wire_refuse(c, source, "its round");
    switch (m->kind) {
    case WIRE_MATCH:
        break;
    case WIRE_INPUT:
        return group_wire_decode_bit(c, ranks, NOTICE_INPUT, NOTICE_NULL, m);
    case WIRE_PART:
        return group_wire_decode_part(c, ranks, m);
    case WIRE_PASS:
        m->bits = NOTICE_PASS;
        return group_wire_decode_name(c, ranks, m);
    case WIRE_HEARTBEAT:
        return group_wire_decode_name(c, ranks, m);
    case WIRE_NUDGE:
        return group_wire_decode_nudge(c, m);
    case WIRE_NUDGED:
        return PCOLL_OK;
    case WIRE_VOTE:
        return group_wire_decode_vote(c, self, ranks, m);
    case WIRE_DECISION:
        return group_wire_decode_bit(c, ranks, NOTICE_ABORT, NOTICE_COMMIT, m);
    case WIRE_MEMBERSHIP:
        return group_wire_decode_membership(c, ranks, m);
    case WIRE_ROUND:
    case WIRE_JOIN:
        return group_wire_decode_returns(c, c->value[0], m);
    case WIRE_DECLARE:
        m->key = c->value[0];
        m->time = (int64_t)c->value[1];
        return PCOLL_OK;
    case WIRE_QUERY:
        m->key = c->value[0];
        return PCOLL_OK;
    case WIRE_COUNT:
        return group_wire_decode_count(c, m);
    case WIRE_COUNTED:
        return group_wire_decode_counted(c, ranks, m);
    case WIRE_FOUND:
        return group_wire_decode_found(c, ranks, m);
    }
    return group_wire_refuse(c, source, "its kind");
}
