/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads of control on one thread: who runs next is the test's decision, so a run
 * can be had again. A coroutine stays when its body is over and is used again.
 */
#ifndef PCOLL_TESTS_COROUTINE_H
#define PCOLL_TESTS_COROUTINE_H

enum { COROUTINES = 160 };

/* What each of them runs when it is first switched to after coroutine_begin. */
typedef void coroutine_body(int id);
/* Called at the end of a body: has to switch to another one, or to end the run. */
typedef void coroutine_end(int id);

/* Run: switches to coroutine `first`, and comes back after coroutine_return. No body is
 * left in the middle. */
void coroutine_run(coroutine_body *body, coroutine_end *end, int first);
/* Within a coroutine: go on with this one; back to who called coroutine_run. */
void coroutine_switch(int from, int to);
void coroutine_return(int from);

#endif
