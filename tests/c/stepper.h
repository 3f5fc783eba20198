/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scheduler of coroutines with its own clock. Every atomic step of the code under test is
 * a point (base/check.h) at which it may switch to another coroutine. Runs are reproducible
 * from the seed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { COROUTINES = 160 };

/* The body of coroutine `id`. */
typedef void coroutine_body(int id);

enum stepper_mode {
    STEPPER_UNIFORM,  /* any that can run */
    STEPPER_STAY,     /* mostly the same again */
    STEPPER_PRIORITY, /* the highest priority; sometimes one gets the lowest */
    STEPPER_STALL,    /* as STAY, but suspends one coroutine at a time */
    STEPPER_PLANNED   /* the same again, except for the departures */
};

/* At step `at` choose the n-th of the coroutines that can run. */
struct departure {
    uint32_t at, n;
};

enum { STEPPER_DEPARTURES = 4, STEPPER_PLANNED_STEPS = 4096 };

struct stepper_options {
    enum stepper_mode mode;
    uint64_t seed;
    int coroutines;
    uint32_t stay;    /* switch once in `stay` steps */
    int64_t tick;     /* nanoseconds of a step */
    uint64_t longest; /* maximal number of steps */
    /* Called if no coroutine can run before that time. It must not make a step. */
    void (*idle)(int64_t until);
    struct departure departure[STEPPER_DEPARTURES];
    int departures;
};

/* The last run, with the number of coroutines that could have run at each of the first
 * steps. */
struct stepper_report {
    uint64_t steps, switches;
    int64_t time;
    uint8_t choices[STEPPER_PLANNED_STEPS];
};

void stepper_run(const struct stepper_options *o, coroutine_body *body,
                 struct stepper_report *report);

/* Called by coroutines. */
int stepper_self(void);
int64_t stepper_now(void);
uint32_t stepper_random(uint32_t bound);
/* Block until stepper_wake or that time (INT64_MAX: no limit). */
void stepper_block(int64_t until);
void stepper_wake(int id);
/* STALL: suspend this coroutine after at most `steps` of its own steps. */
void stepper_stall_soon(uint32_t steps);
/* Let other coroutines run: a step that does nothing. */
void stepper_point(void);
