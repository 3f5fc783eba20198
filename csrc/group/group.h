/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grouped allreduce on one rank: the participant that the agent drives. It brings
 * together what each knows one thing: grid.h (with whom), roll.h (who is there),
 * match.h (who is together), round.h (the data), verdict.h (does it count).
 *
 * Phases (the driver's):
 *
 *   IDLE      a round is over: leave, come back, or look for the next group
 *   ASKING    back again: asks the others which round they are at
 *   MATCHING  looks for the group of `round`: at once, while the application computes
 *   ROUND     in a group. The contribution is the application's when it has started;
 *             it is none ("null": this rank only reduces its part for the others) if it
 *             leaves, or if the others pass it over since they have waited half their
 *             timeout. Then the data, then the verdict.
 *   AWAY      left
 *
 * Application and driver share: started, finished (counts), the wishes, the input in
 * the window (the application's while no deposit is outstanding) and `outcome` and the
 * landing (the driver's until finished is counted up, then the application's until it
 * starts again: a round with a null contribution does not touch them).
 */
#ifndef PCOLL_GROUP_GROUP_H
#define PCOLL_GROUP_GROUP_H

#include "../allreduce/runtime.h"
#include "../gossip/spent_window.h"
#include "grid.h"
#include "match.h"
#include "roll.h"
#include "round.h"

enum phase { PHASE_IDLE, PHASE_ASKING, PHASE_MATCHING, PHASE_ROUND, PHASE_AWAY };

enum contribution { CONTRIBUTION_OPEN, CONTRIBUTION_OWN, CONTRIBUTION_NULL };

/* What a group is called. */
struct group_name {
    uint32_t leader, seq;
};

/* The last that was heard of a rank about a group. */
struct notice {
    struct group_name name;
    uint32_t bits; /* enum notice_bit */
    uint32_t rate; /* with PART: how fast it fetched this rank's input, KiB/s, or 0 */
};

enum notice_bit {
    NOTICE_INPUT = 1,
    NOTICE_NULL = 2, /* an input that is none */
    NOTICE_PART = 4,
    NOTICE_PASS = 8,
    NOTICE_VOID = 16,
    NOTICE_COMMIT = 32
};

/* The group's round that is under way. */
struct current {
    struct group_name name;
    struct round data;
    enum contribution contribution;
    enum verdict verdict;
    bool marked;        /* this rank has voted: done */
    bool passed;        /* asked to go on without the application */
    bool passed_over;   /* has asked the others */
    uint32_t chain;     /* the shortest of the members' */
    bool early;         /* it was known before the application came */
    int64_t began;      /* ns, since when it contributes */
    int64_t spoke;      /* when it last let the others hear from it */
    int64_t looked;     /* … and looked at the verdict */
    int64_t void_after; /* no vote for void before */
    int64_t *heard;     /* … and heard from each member */
    int64_t nap;        /* between looks at far fetches */
};

/* Of the directory: declare, count, look; count, look; … */
enum inquiry_stage { INQUIRY_DECLARE, INQUIRY_COUNT, INQUIRY_LOOK };

struct inquiry {
    enum inquiry_stage stage;
    int64_t at, pause; /* the next look, and the time between them; ns */
    bool waits;        /* for an answer from another node */
    bool counted_self;
    uint32_t counted; /* ranks that had declared themselves before the look */
    uint32_t found;
};

struct pcoll_group {
    struct runtime_entry entry; /* first: found again from it */
    struct participant base;    /* found again from it */
    struct context *context;
    pcoll_group_options options;
    struct grid grid;
    uint64_t *cells; /* by rank; with dynamic keys the own one alone is true */
    uint32_t *line;  /* room for the ranks of one line */
    bool dynamic;
    struct place place;
    struct window *window;
    struct spent_window *spent; /* room for it, until it has closed */

    int64_t time;  /* ns, by its own clock: of when it was driven last, … */
    int64_t due;   /* … should be next, or INT64_MAX, … */
    int64_t stood; /* … and by how much that clock is behind */

    enum phase phase;
    uint64_t round;
    uint64_t cell;  /* own */
    uint32_t chain; /* complete rounds in a row */
    struct roll roll;
    struct match match;
    struct current now;
    struct notice *notices; /* by rank */
    struct inquiry inquiry;
    struct match_entry *entries, *served; /* room for what a look finds, here or for
                                             others, … */
    int64_t *words;                       /* … and for how it lies there */
    double *bandwidths;                   /* room for those of a group */
    uint32_t opened;                      /* the last own group with a word */
    int64_t declared_time;
    int64_t stay_until; /* MATCHING: it leaves, and waits for a list; 0: no */
    int64_t matching_since;
    int64_t hurry_at; /* MATCHING: when to tell those who are waited for; 0: not yet */
    bool hurries;     /* … that they are to hurry */
    int64_t *heard;   /* by rank: when this one has heard from it, of whatever */
    uint64_t ask_highest; /* ASKING: the highest round answered, … */
    uint32_t answers;     /* … by so many … */
    int64_t ask_until;    /* … and until when to wait for more */
    float bandwidth;      /* what it tells the others; 0: none */
    double measured;      /* of the last rounds; 0: none */
    uint32_t measured_rounds;
    bool come_back;      /* has been suspected */
    bool driven, queued; /* made altogether; may close */

    uint64_t consumed;    /* deposits that a round has taken */
    uint64_t last_index;  /* the last round with a deposit of this rank, + 1 */
    uint64_t sent, taken; /* control messages */
    struct drain {
        struct agreement agreement;
        uint64_t counts[2], before[2];
        bool agreeing;
        int64_t again_at; /* INT64_MAX: no */
    } drain;

    _Atomic uint64_t started, finished;
    _Atomic bool wants_away;      /* the last that leave or rejoin said */
    _Atomic uint64_t shown_round; /* for the application */
    pthread_mutex_t mutex;        /* of what follows, between the two */
    struct pcoll_group_round outcome;
    uint32_t *outcome_ranks;
    double *outcome_shares;
    pcoll_group_stats stats;

    bool waiting; /* the application has started and not yet waited */
    bool closing; /* asked for */
    _Atomic bool closed;
    _Atomic bool busy;
};

/* The driver's part. */
extern const struct participant_ops group_participant; /* drive.c */

/* drive.c: go on as far as that is possible. */
int group_drive(struct pcoll_group *g);
/* Before anything is done: how late is it? */
void group_look_at_clock(struct pcoll_group *g);
/* closing.c: the same for one that closes. */
int group_drain(struct pcoll_group *g);
/* When its turn has come. */
int group_begin_close(struct participant *p);

/* matching.c */
int group_begin_matching(struct pcoll_group *g);
int group_go_on_matching(struct pcoll_group *g);
/* The ranks of the own line that are live, this one among them, into g->line. */
uint32_t group_live_on_line(struct pcoll_group *g);
/* The roll has changed: who is waited for? */
void group_roll_changed(struct pcoll_group *g, uint32_t rank);
/* Somebody is on a list that it does not follow (any more): its group is void, and its
 * members need not wait until they find out. In any phase. */
int group_refuse(struct pcoll_group *g);
/* Answers of a directory on another node. */
void group_counted(struct pcoll_group *g, uint64_t round, bool is_count,
                   uint32_t counted);
void group_found(struct pcoll_group *g, const struct control *c);

/* running.c */
int group_begin_round(struct pcoll_group *g);
int group_go_on_round(struct pcoll_group *g);
void group_apply_notice(struct pcoll_group *g, uint32_t rank);
int group_learn_verdict(struct pcoll_group *g, enum verdict verdict);
/* A group of this rank's is void, says one who may know no other member. */
int group_hear_void(struct pcoll_group *g, struct group_name name);
/* Somebody waits in that round: do not wait for the application in one before it. */
int group_hurry(struct pcoll_group *g, uint64_t round);
/* Driver: what the others hear of this rank's link from the next matchmaking on. */
void group_tell_bandwidth(struct pcoll_group *g, double bandwidth);
int group_suspect(struct pcoll_group *g, uint32_t rank);
int64_t group_round_alarm(struct pcoll_group *g);
notice_fn group_notify;         /* of a struct pcoll_group */
int group_breathe(void *group); /* let the members hear from this rank, if it is time */

/* talk.c */
enum talk {
    TALK_MATCH = 0, /* up to TALK_INPUT: kinds of match.h */
    TALK_INPUT = 64,
    TALK_PART,
    TALK_PASS,    /* go on without your application */
    TALK_HURRY,   /* … in whatever round before this one: you are waited for there; or
                     only let me hear from you */
    TALK_HEARD,   /* the answer to that: here */
    TALK_ALIVE,   /* the same, to the members of a group */
    TALK_VOTE,    /* to the leader on another node */
    TALK_VERDICT, /* to all members */
    TALK_ROLL,    /* to all ranks: somebody's standing */
    TALK_HERE,    /* to one that is back: the round that it may join */
    TALK_JOIN,    /* to all ranks: the one that it joins */
    TALK_DECLARE, /* to the directory on another node … */
    TALK_COUNT,
    TALK_COUNTED, /* … and its answers */
    TALK_LOOK,
    TALK_FOUND
};
int group_say(struct pcoll_group *g, uint32_t to, enum talk kind, uint16_t part,
              uint64_t round, const uint64_t value[4]);
int group_say_about(struct pcoll_group *g, uint32_t to, enum talk kind,
                    struct group_name name, uint64_t value);
int group_say_verdict(struct pcoll_group *g, uint32_t to, struct group_name name,
                      enum verdict verdict);
/* To the leader, where it is on another node. */
int group_say_vote(struct pcoll_group *g, struct group_name name,
                   enum verdict_vote vote, uint32_t members);
int group_say_to_all(struct pcoll_group *g, enum talk kind, uint64_t round,
                     const uint64_t value[4]);
int group_flush_match(struct pcoll_group *g);
int group_hear(struct participant *p, uint32_t source, const struct control *message);
int group_announce(struct pcoll_group *g, uint32_t rank, enum standing standing,
                   uint32_t returns);
/* That this rank takes part from the round that it is at. */
int group_announce_join(struct pcoll_group *g);
/* The round that one that comes back may join, for all that this rank knows. */
uint64_t group_round_to_join(const struct pcoll_group *g);

/* For one thread at a time: PCOLL_ESTATE if another is inside, or it is freed. */
int group_enter(struct pcoll_group *g);
int group_leave_call(struct pcoll_group *g, int rc);

/* At MPI_Finalize. */
void group_begin_end(struct runtime_entry *entry);
void group_end(struct runtime_entry *entry);
/* make.c. The options are there: check them, make everything but what needs the
 * window; then the window is there. */
int group_prepare(struct pcoll_group *g, uint32_t rank, uint32_t ranks);
int group_attach(struct pcoll_group *g);
/* All but the window. */
void group_dispose(struct pcoll_group *g);

static inline struct pcoll_group *group_of(struct participant *p)
{
    return (struct pcoll_group *)(void *)((char *)p -
                                          offsetof(struct pcoll_group, base));
}

static inline bool group_same(struct group_name a, struct group_name b)
{
    return a.leader == b.leader && a.seq == b.seq;
}

static inline int64_t group_timeout_ns(const struct pcoll_group *g)
{
    return g->options.timeout_us * 1000;
}

static inline bool group_was_started(const struct pcoll_group *g)
{
    return atomic_load(&g->started) > g->consumed;
}

#endif
