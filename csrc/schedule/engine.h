/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a persistent schedule, round after round, without I/O: the owner reports events
 * to the engine and asks it for the next operation.
 *
 * The engine owns two instances of the schedule: one for the current round, one for the
 * next round, since messages of the next round may arrive early. Completions for the
 * next round are recorded and have no effect until the current round is over and the
 * next one is released. With this rule no rank gets two rounds ahead.
 *
 * Every operation is consumable: it goes through waiting, ready, running and done once
 * per round. A completion of an operation that is done, or of a finished round, is
 * dropped.
 *
 * One thread at a time may use an engine; the owner ensures that.
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
    uint32_t *ready; /* each operation enters once a round: `count` entries suffice */
    uint32_t head, tail;
    uint32_t running;
};

struct engine {
    const struct sched *sched;
    struct instance instances[2]; /* of round r: instances[r % 2] */
    uint64_t current;
    bool released;
    uint64_t early;   /* completions that were kept for the next round */
    uint64_t dropped; /* duplicate and late completions */
};

enum engine_outcome {
    ENGINE_TAKEN,
    ENGINE_KEPT,      /* recorded for the next round */
    ENGINE_DROPPED,   /* late or duplicate */
    ENGINE_IMPOSSIBLE /* two or more rounds ahead, which the protocol forbids */
};

/* The schedule must be committed and outlive the engine. PCOLL_ENOMEM. */
int engine_init(struct engine *e, const struct sched *s);
void engine_destroy(struct engine *e);

/* Begin with this round instead of the first; only directly after engine_init. */
void engine_begin_at(struct engine *e, uint64_t round);

/* Report that an operation of a round is complete: a message arrived, a send completed,
 * or an event happened. */
enum engine_outcome engine_complete(struct engine *e, uint64_t round, int op);

/* Let the current round run: nothing else holds it back. */
void engine_release(struct engine *e);

/* Return the next operation of the current round to issue, or -1. It is running from
 * then on and must be completed. NOPs are never returned. */
int engine_next(struct engine *e);

/* Return whether the end is done and no operation is ready or running. */
bool engine_over(const struct engine *e);

/* Leave the finished round: reset its instance and make the next round current. It is
 * not released yet. */
void engine_advance(struct engine *e);

enum op_state engine_state(const struct engine *e, uint64_t round, int op);

#endif
