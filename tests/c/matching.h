/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated matchmaking: peers, each with a machine of
 * csrc/protocol/group/matchmaking.h and a clock of its own, messages that take time,
 * and what may go wrong. Discrete events in true time, all drawn from one seed.
 */
#pragma once

#include "protocol/group/matchmaking.h"
#include "group/group_wire.h"

enum {
    MAX_PEERS = 40,
    MAX_ROUNDS = 5,
    MAX_GROUPS = 1024,
    PATIENCE = 1000 /* a nanosecond is as good as any other unit */
};

enum delays { DELAY_CONSTANT, DELAY_UNIFORM, DELAY_HEAVY };
enum knowledge {
    KNOW_ALL,      /* a static line: all at once, time 0 */
    KNOW_DIRECTORY /* each look-up sees a part of who has declared */
};
enum expectation { EXPECT_NOTHING, EXPECT_AT_ONCE, EXPECT_LATER };

/* What is drawn for a run. */
struct matching_plan {
    uint64_t seed;
    uint32_t peers, rounds, keys;
    enum delays delays;
    int64_t delay; /* at most, but for the heavy tail */
    enum knowledge knowledge;
    int64_t look_up; /* between two look-ups, and how old an entry is when all see it */
    bool wrong_times; /* the directory's times are not those of the peers */
    bool wrong_keys;  /* it names peers that have another key */
    enum expectation expectation;
    uint32_t most;
    bool alike;             /* in bandwidth and chain */
    int64_t window, spread; /* begins of a round, at least */
    bool faults, false_reports;
};

enum fate { FATE_NONE, FATE_STOPS, FATE_PAUSES, FATE_LEAVES };

enum round_step {
    STEP_PUBLISH,
    STEP_FETCH,
    STEP_MARK,
    STEP_LOOK,
    STEP_VOID,
    STEP_OVER
};

struct sim_round {
    bool begun, over, formed, behind, touched;
    int64_t begun_at, over_at, goal_time;
    int group; /* index, or -1 */
    struct match_member self;
    /* with the group (matching_round.c) */
    enum round_step step;
    bool published, marked, has_read;
    int64_t give_up, word;
    enum decision decision;
};

struct sim_peer {
    struct match m;
    int64_t skew;
    double drift;
    uint64_t round;  /* to begin, or in */
    bool waiting;    /* END or BEGIN is in the queue */
    bool gone, done; /* stopped or left for good; all rounds are over */
    enum fate fate;
    int64_t fate_at, back_at;
    int64_t reported_at[MAX_PEERS]; /* that others are lost, the last time */
    struct sim_round rounds[MAX_ROUNDS];
};

/* A list, as the first one who formed it holds it. */
struct sim_group {
    uint32_t leader, seq, count;
    uint64_t round, key;
    struct match_member members[MAX_PEERS];
    bool formed[MAX_PEERS], refused; /* by peer */
    enum decision decision;
};

struct sim_world {
    struct matching_plan plan;
    struct sim_peer peers[MAX_PEERS];
    struct sim_group groups[MAX_GROUPS];
    int group_count;
    int64_t words[MAX_PEERS][DECISIONS]; /* in the memory of each leader */
    int64_t now;
    uint64_t events, messages;
    uint64_t sent[MAX_ROUNDS][MAX_PEERS]; /* by round and key */
    bool touched[MAX_ROUNDS][MAX_PEERS];  /* a member of it failed, or was said to */
    uint32_t faults, late;                /* late: messages beyond P/4 */
    uint64_t together;                    /* rounds of survivors that were checked */
    uint64_t draws;
};

extern struct sim_world sim;

uint32_t sim_draw(uint32_t bound);
uint64_t sim_key(uint32_t peer, uint64_t round);
/* Peers that would be in the group if all went well. */
uint32_t sim_comers(uint64_t round, uint64_t key);
int64_t sim_clock(const struct sim_peer *p, int64_t at);
bool sim_before(uint32_t a, uint32_t b, uint64_t round); /* by priority */

/* The whole run; checks as it goes. */
void sim_run(const struct matching_plan *plan);
void sim_destroy(void);

/* The round of a group (matching_round.c): the leader opens it before it sends the
 * list, each member begins it and goes on after so long, until STEP_OVER. */
void sim_round_open(const struct sim_group *g);
void sim_round_begin(uint32_t peer);
int64_t sim_round_go_on(uint32_t peer);
/* Somebody is on a list that it does not keep. */
void sim_round_refuse(const struct sim_group *g);
void check_round(const struct sim_group *g, bool calm);

/* Anything at any time to one machine (matching_fuzz.c); how often it formed the list
 * of another one. */
uint64_t matching_fuzz(uint64_t seed);

/* Invariants (matching_check.c). */
void check_peer(uint32_t peer, bool ticked);
void check_formed(uint32_t peer);
void check_refusal(uint32_t peer, const struct match_refusal *refusal);
void check_end(void);
