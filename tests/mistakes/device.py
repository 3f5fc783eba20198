# SPDX-License-Identifier: Apache-2.0
"""Mistakes in copies between host and device."""

from .mutant import Mutant

MUTANTS = [
    # Copies between host and device.
    Mutant(
        "one stream does not wait for the producer's",
        "device/lane.c",
        "result = cuda.stream_wait(w->stream[i], w->given, 0);",
        "result = i ? CUDA_SUCCESS : cuda.stream_wait(w->stream[i], w->given, 0);",
    ),
    Mutant(
        "copies are over with those of the first stream",
        "device/lane.c",
        "i < STREAMS && result == CUDA_SUCCESS; i++)\n        result = cuda.event_query",
        "i < 1 && result == CUDA_SUCCESS; i++)\n        result = cuda.event_query",
    ),
    Mutant(
        "the consumer's stream waits for one stream's copies only",
        "device/lane.c",
        "i < STREAMS && rc == PCOLL_OK && result",
        "i < 1 && rc == PCOLL_OK && result",
    ),
    Mutant(
        "what a failed copy says is forgotten",
        "device/lane.c",
        "w->failure = w->failure ?: failed;",
        "",
    ),
    Mutant(
        "the context of another device is taken",
        "device/lane.c",
        "cuda.primary_retain(&m->context, device)",
        "cuda.primary_retain(&m->context, !device)",
    ),
    Mutant(
        "the caller's context is not given back",
        "device/lane.c",
        "cuda_result result = cuda.context_pop(&own);",
        "cuda_result result = CUDA_SUCCESS;",
    ),
    Mutant(
        "copies begin while others are under way",
        "device/lane.c",
        'if (rc == PCOLL_EAGAIN) return fail(PCOLL_ESTATE, "the last copies are not over");',
        "if (rc == PCOLL_EAGAIN)\n        rc = PCOLL_OK;",
    ),
    Mutant(
        "every chunk comes from where the first one does",
        "device/lane.c",
        "copy_to_host(host, p->device + from, bytes, stream)",
        "copy_to_host(host, p->device, bytes, stream)",
    ),
    Mutant(
        "a graph is recorded into",
        "device/lane.c",
        "if (rc != PCOLL_OK || !capturing)",
        "if (rc != PCOLL_OK || capturing < 2)",
    ),
    Mutant(
        "a byte behind an allocation belongs to it",
        "device/lane.c",
        "return behind <= a.start + a.size",
        "return behind <= a.start + a.size + 1",
    ),
    Mutant(
        "managed memory is where it lies now",
        "device/lane.c",
        "a.type == TYPE_DEVICE || a.managed ? a.device : PLACE_HOST",
        "a.type == TYPE_DEVICE ? a.device : PLACE_HOST",
    ),
    Mutant(
        "managed memory that lies on the host has been freed",
        "device/lane.c",
        "if (a.type != TYPE_DEVICE && !a.managed)",
        "if (a.type != TYPE_DEVICE)",
    ),
    Mutant(
        "a forked child uses its parent's driver",
        "device/lane.c",
        "if (owner != getpid())",
        "if (owner == 0)",
    ),
    Mutant(
        "a pull begins while a push reads the host's side",
        "device/lane.c",
        "return lane_poll(m, LANE_TO_DEVICE) ?: lane_poll(m, LANE_TO_HOST);",
        "return lane_poll(m, LANE_TO_HOST);",
    ),
    Mutant(
        "a push does not order the stream that reads",
        "device/lane.c",
        "return mirror_begin(m, LANE_TO_DEVICE, pieces, count, stream)\n"
        "               ?: lane_order(m, stream);",
        "return mirror_begin(m, LANE_TO_DEVICE, pieces, count, stream);",
    ),
    Mutant(
        "a rank arrives before its copy is over",
        "allreduce/staging.c",
        "int rc = lane_poll(s->mirror, LANE_TO_HOST)",
        "int rc = PCOLL_OK",
        program="staging",
    ),
    Mutant(
        "a result goes back to the library while it is being copied",
        "allreduce/staging.c",
        "?: lane_poll(s->mirror, LANE_TO_DEVICE)\n                 ?: d->ops->deposit",
        "?: d->ops->deposit",
        program="staging",
    ),
    Mutant(
        "two may make a deposit",
        "allreduce/staging.c",
        "return atomic_compare_exchange_strong(&s->state, &copying, HELD);",
        "if (atomic_load(&s->state) == ARRIVED)\n        return false;\n"
        "    nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL); /* as if another came */\n"
        "    atomic_store(&s->state, HELD);\n    return copying;",
        program="staging",
    ),
    Mutant(
        "a failed copy counts as a deposit",
        "allreduce/staging.c",
        "if (rc != PCOLL_OK && rc != PCOLL_EAGAIN)\n        staging_keep_failure(s, rc);",
        "",
        program="staging",
    ),
    Mutant(
        "float16 results are copied as they were reduced",
        "allreduce/staging.c",
        "if (!null && !staging_has_another_form(p))",
        "if (!null)",
        program="staging",
    ),
    Mutant(
        "memory is pinned and never let go",
        "device/lane.c",
        "cuda.host_unregister(m->pinned[--m->pins]);",
        "m->pins--;",
        program="staging",
    ),
    Mutant(
        "addresses are believed",
        "device/lane.c",
        "rc = place_check(pieces",
        "rc = 0 * place_check(pieces",
        program="staging",
    ),
]
