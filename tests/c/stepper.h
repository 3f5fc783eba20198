/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who makes the next step? A scheduler of coroutines with a clock of its own. Every
 * atomic step of the code under test is a point (base/check.h) at which it may let
 * another one go on. Reproducible from the seed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { COROUTINES = 160 };

/* What coroutine `id` runs. */
typedef void coroutine_body(int id);

enum stepper_mode {
    STEPPER_UNIFORM,  /* any that can run */
    STEPPER_STAY,     /* the same again, mostly */
    STEPPER_PRIORITY, /* the one of highest priority; now and then one gets the lowest
                       */
    STEPPER_STALL,    /* as STAY, but one at a time stands still for a long stretch */
    STEPPER_PLANNED   /* the same again, but for the departures */
};

/* At step `at` choose the n-th of those that can run instead. */
struct departure {
    uint32_t at, n;
};

enum { STEPPER_DEPARTURES = 4, STEPPER_PLANNED_STEPS = 4096 };

struct stepper_options {
    enum stepper_mode mode;
    uint64_t seed;
    int coroutines;
    uint32_t stay;    /* leave once in so many steps */
    int64_t tick;     /* nanoseconds of a step */
    uint64_t longest; /* more steps than that are too many */
    /* Nobody can run before that time; no step may be made in it. */
    void (*idle)(int64_t until);
    struct departure departure[STEPPER_DEPARTURES];
    int departures;
};

/* Of the last run: how many could have run at each of the first steps. */
struct stepper_report {
    uint64_t steps, switches;
    int64_t time;
    uint8_t choices[STEPPER_PLANNED_STEPS];
};

void stepper_run(const struct stepper_options *o, coroutine_body *body,
                 struct stepper_report *report);

/* For the coroutines. */
int stepper_self(void);
int64_t stepper_now(void);
uint32_t stepper_random(uint32_t bound);
/* Stand still until stepper_wake, at most until that time (INT64_MAX: no limit). */
void stepper_block(int64_t until);
void stepper_wake(int id);
/* STALL: it is to stand still after so many steps of its own, at most. */
void stepper_stall_soon(uint32_t steps);
/* Let the others go on: a step that does nothing. */
void stepper_point(void);
