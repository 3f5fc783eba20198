/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated matchmaking: peers that each have a machine of
 * csrc/protocol/group/matchmaking.h and their own clock, delayed messages, and failures.
 * Discrete events in true time, all drawn from one seed.
 */
#pragma once

#include "protocol/group/matchmaking.h"
#include "group/group_wire.h"

enum {
    MAX_PEERS = 40,
    MAX_ROUNDS = 5,
    MAX_GROUPS = 1024,
    PATIENCE = 1000 /* in nanoseconds; the unit does not matter */
};

enum delays { DELAY_CONSTANT, DELAY_UNIFORM, DELAY_HEAVY };
enum knowledge {
    KNOW_ALL,      /* static list: every peer knows all others from time 0 */
    KNOW_DIRECTORY /* each look-up sees some of the declared peers */
};
enum expectation { EXPECT_NOTHING, EXPECT_AT_ONCE, EXPECT_LATER };

/* The drawn parameters of a run. */
struct matching_plan {
    uint64_t seed;
    uint32_t peers, rounds, keys;
    enum delays delays;
    int64_t delay; /* maximal, except for the heavy tail */
    enum knowledge knowledge;
    int64_t look_up;  /* time between two look-ups, and until all peers see an entry */
    bool wrong_times; /* the directory's times differ from those of the peers */
    bool wrong_keys;  /* the directory names peers that have another key */
    enum expectation expectation;
    uint32_t most;
    bool alike;             /* equal bandwidth and chain */
    int64_t window, spread; /* minimal time between begins of rounds */
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
    /* the round of the group (matching_round.c) */
    enum round_step step;
    bool published, marked, has_read;
    int64_t give_up, word;
    enum decision decision;
};

struct sim_peer {
    struct match m;
    int64_t skew;
    double drift;
    uint64_t round;  /* the current or next round */
    bool waiting;    /* an END or BEGIN event is queued */
    bool gone, done; /* stopped or left for good; has done all rounds */
    enum fate fate;
    int64_t fate_at, back_at;
    int64_t reported_at[MAX_PEERS]; /* last time that this peer was told of each loss */
    struct sim_round rounds[MAX_ROUNDS];
};

/* A list as its leader, the first to form it, holds it. */
struct sim_group {
    uint32_t leader, seq, count;
    uint64_t round, key;
    struct match_member members[MAX_PEERS];
    bool formed[MAX_PEERS], refused; /* formed: by peer */
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
    bool touched[MAX_ROUNDS][MAX_PEERS];  /* by round and key: a member failed or was
                                           * reported */
    uint32_t faults, late;                /* late: messages delayed by more than P/4 */
    uint64_t together;                    /* checked rounds of surviving peers */
    uint64_t draws;
};

extern struct sim_world sim;

uint32_t sim_draw(uint32_t bound);
uint64_t sim_key(uint32_t peer, uint64_t round);
/* Return the number of peers that are in the group if nothing fails. */
uint32_t sim_comers(uint64_t round, uint64_t key);
int64_t sim_clock(const struct sim_peer *p, int64_t at);
bool sim_before(uint32_t a, uint32_t b, uint64_t round); /* by priority */

/* Run a plan to its end and check the invariants. */
void sim_run(const struct matching_plan *plan);
void sim_destroy(void);

/* The round of a group (matching_round.c). The leader opens it before it sends the
 * list. Each member begins it, and continues after the returned delay until
 * STEP_OVER. */
void sim_round_open(const struct sim_group *g);
void sim_round_begin(uint32_t peer);
int64_t sim_round_go_on(uint32_t peer);
/* Note that a peer refused a list that contains it. */
void sim_round_refuse(const struct sim_group *g);
void check_round(const struct sim_group *g, bool calm);

/* Send arbitrary messages and calls to one machine (matching_fuzz.c). Return how often
 * it formed a list of another peer. */
uint64_t matching_fuzz(uint64_t seed);

/* Invariants (matching_check.c). */
void check_peer(uint32_t peer, bool ticked);
void check_formed(uint32_t peer);
void check_refusal(uint32_t peer, uint32_t leader, uint32_t seq);
void check_end(void);
