/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a persistent schedule, round after round, without doing any I/O: the engine
 * is told what has happened and asked what to do next.
 *
 * It owns two instances of the schedule. `current` belongs to the round that may run,
 * the other one to the round after it, because messages of that round may come first.
 * What comes for the next round is recorded there and has no consequences until the
 * current round is over and the next one is released: with that rule no rank gets two
 * rounds ahead.
 *
 * Every operation is consumable: waiting -> ready -> running -> done, once per round. A
 * completion of an operation that is done already, or of a finished round, is dropped.
 *
 * One thread at a time; its owner sees to that.
 */
#ifndef PCOLL_SCHEDULE_ENGINE_H
#define PCOLL_SCHEDULE_ENGINE_H

#include "schedule/sched.h"

enum op_state { OP_WAITING, OP_READY, OP_RUNNING, OP_DONE };

struct op_progress {
    uint32_t done_preds;
    enum op_state state;
};

struct instance {
    struct op_progress *ops;
    uint32_t *ready; /* every operation enters once a round: count entries are enough */
    uint32_t head, tail;
    uint32_t running;
};

struct engine {
    const struct sched *sched;
    struct instance instances[2]; /* of round r: instances[r % 2] */
    uint64_t current;
    bool released;
    uint64_t early,
        dropped; /* completions kept for the next round; duplicates and late */
};

enum engine_outcome {
    ENGINE_TAKEN,
    ENGINE_KEPT,      /* for the next round */
    ENGINE_DROPPED,   /* late or a duplicate: harmless */
    ENGINE_IMPOSSIBLE /* two or more rounds ahead: the protocol forbids it */
};

/* The schedule must be committed and outlive the engine. PCOLL_ENOMEM. */
int engine_init(struct engine *e, const struct sched *s);
void engine_destroy(struct engine *e);

/* Fresh: begin with this round instead of the first. */
void engine_begin_at(struct engine *e, uint64_t round);

/* An operation of a round is complete (a message came, an event happened, a send
 * ended). */
enum engine_outcome engine_complete(struct engine *e, uint64_t round, int op);

/* The current round may run: the one before is over, and nothing else holds it back. */
void engine_release(struct engine *e);

/* The next operation of the current round to be issued (it counts as running from then
 * on and must be completed), or -1. NOPs never show up here. */
int engine_next(struct engine *e);

/* The end operation is done and nothing is running or about to. */
bool engine_over(const struct engine *e);

/* Leave the finished round: re-arm its instance and move on (not released yet). */
void engine_advance(struct engine *e);

enum op_state engine_state(const struct engine *e, uint64_t round, int op);

#endif
