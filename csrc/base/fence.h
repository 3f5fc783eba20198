/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two fences of a copy that may be overwritten while it is made (a seqlock): the
 * reader's between its reads and its last look at the counter, the writer's between the
 * counter and its writes. And one between everything before and after it. The thread sanitizer
 * knows no fences; there the counters, which are atomic, are enough on the machines it runs on.
 */
#ifndef PCOLL_BASE_FENCE_H
#define PCOLL_BASE_FENCE_H

#include <stdatomic.h>

#ifdef __SANITIZE_THREAD__
#define fence_after_reads() ((void)0)
#define fence_before_writes() ((void)0)
#define fence_all() ((void)0)
#else
#define fence_after_reads() atomic_thread_fence(memory_order_acquire)
#define fence_before_writes() atomic_thread_fence(memory_order_release)
#define fence_all() atomic_thread_fence(memory_order_seq_cst)
#endif

#endif
