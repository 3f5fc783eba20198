/* SPDX-License-Identifier: Apache-2.0 */
#include "coroutine.h"

#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

#include "check.h"

enum { STACK = 128 << 10 };

static struct {
    ucontext_t caller, of[COROUTINES];
    char *stack[COROUTINES];
    coroutine_body *body;
    coroutine_end *end;
} c;

static void loop(int id)
{
    for (;;) {
        c.body(id);
        c.end(id);
    }
}

static ucontext_t *context(int id)
{
    if (c.stack[id])
        return &c.of[id];
    c.stack[id] = malloc(STACK);
    EXPECT(c.stack[id] && getcontext(&c.of[id]) == 0, "no memory for a coroutine");
    c.of[id].uc_stack.ss_sp = c.stack[id];
    c.of[id].uc_stack.ss_size = STACK;
    makecontext(&c.of[id], (void (*)(void))(uintptr_t)loop, 1, id);
    return &c.of[id];
}

void coroutine_run(coroutine_body *body, coroutine_end *end, int first)
{
    c.body = body;
    c.end = end;
    swapcontext(&c.caller, context(first));
}

void coroutine_switch(int from, int to)
{
    swapcontext(&c.of[from], context(to));
}

void coroutine_return(int from)
{
    swapcontext(&c.of[from], &c.caller);
}
