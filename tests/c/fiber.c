/* SPDX-License-Identifier: Apache-2.0 */
#include "fiber.h"

#include <stdlib.h>
#include <ucontext.h>

#include "check.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 256 << 10 };

struct fiber {
    ucontext_t inside, outside;
    void (*body)(void *arg);
    void *arg;
    char *stack;
    bool runs; /* begun, and not ended */
};

static struct fiber *current;

/* The sanitizer wants to know on which stack it is. */
struct stack {
    const void *bottom;
    size_t bytes;
};

static struct stack outside;

static void leave_stack(void **keep, struct stack to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(keep, to.bottom, to.bytes);
#else
    (void)keep;
    (void)to;
#endif
}

static void enter_stack(void *kept, struct stack *from)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(kept, &from->bottom, &from->bytes);
#else
    (void)kept;
    (void)from;
#endif
}

/* swapcontext, of which the sanitizer says that it may not understand it. */
static void swap(ucontext_t *from, const ucontext_t *to)
{
    volatile bool back = false;
    getcontext(from);
    if (!back) {
        back = true;
        setcontext(to);
    }
}

static void begin(void)
{
    struct fiber *f = current;
    enter_stack(NULL, &outside);
    f->body(f->arg);
    f->runs = false;
    leave_stack(NULL, outside);
    setcontext(&f->outside);
}

void fiber_resume(struct fiber *f)
{
    void *kept;
    struct stack inside;
    current = f;
    leave_stack(&kept, (struct stack){f->stack, STACK_BYTES});
    swap(&f->outside, &f->inside);
    enter_stack(kept, &inside);
    current = NULL;
}

static void prepare(struct fiber *f)
{
    getcontext(&f->inside);
    f->inside.uc_stack.ss_sp = f->stack;
    f->inside.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->inside, begin, 0);
}

void fiber_run(struct fiber **at, void (*body)(void *arg), void *arg)
{
    struct fiber *f = *at;
    if (!f) {
        *at = f = calloc(1, sizeof *f);
        EXPECT(f && (f->stack = malloc(STACK_BYTES)), "no memory for a fiber");
    }
    EXPECT(!f->runs && !current, "a fiber is run twice");
    f->body = body;
    f->arg = arg;
    f->runs = true;
    prepare(f);
    fiber_resume(f);
}

bool fiber_is_paused(const struct fiber *f)
{
    return f && f->runs && f != current;
}

void fiber_abandon(struct fiber **at)
{
    if (*at)
        free((*at)->stack);
    free(*at);
    *at = NULL;
}

struct fiber *fiber_current(void)
{
    return current;
}

void fiber_pause(void)
{
    void *kept;
    struct fiber *f = current;
    leave_stack(&kept, outside);
    swap(&f->inside, &f->outside);
    enter_stack(kept, &outside);
}
