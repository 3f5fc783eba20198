# SPDX-License-Identifier: Apache-2.0
"""Mistakes in copies between host and device."""

from .mutant import Mutant

MUTANTS = [
    # Copies between host and device.
    Mutant(
        "the second copy stream does not wait for the producer's stream",
        "device/lane.c",
        "result = cuda.stream_wait(w->stream[i], w->given, 0);",
        "result = i ? CUDA_SUCCESS : cuda.stream_wait(w->stream[i], w->given, 0);",
    ),
    Mutant(
        "a poll checks the copies of the first stream only",
        "device/lane.c",
        "i < STREAMS && result == CUDA_SUCCESS; i++)\n        result = cuda.event_query",
        "i < 1 && result == CUDA_SUCCESS; i++)\n        result = cuda.event_query",
    ),
    Mutant(
        "the consumer's stream waits for the first copy stream only",
        "device/lane.c",
        "i < STREAMS && rc == PCOLL_OK && result",
        "i < 1 && rc == PCOLL_OK && result",
    ),
    Mutant(
        "the failure of a copy is not recorded",
        "device/lane.c",
        "w->failure = w->failure ?: failed;",
        "",
    ),
    Mutant(
        "a mirror retains the context of another device",
        "device/lane.c",
        "cuda.primary_retain(&m->context, device)",
        "cuda.primary_retain(&m->context, !device)",
    ),
    Mutant(
        "the caller's device context is not restored",
        "device/lane.c",
        "cuda_result result = cuda.context_pop(&own);",
        "cuda_result result = CUDA_SUCCESS;",
    ),
    Mutant(
        "copies begin while earlier copies are in progress",
        "device/lane.c",
        'if (rc == PCOLL_EAGAIN) return fail(PCOLL_ESTATE, "the last copies are not over");',
        "if (rc == PCOLL_EAGAIN)\n        rc = PCOLL_OK;",
    ),
    Mutant(
        "every chunk is copied from the address of the first chunk",
        "device/lane.c",
        "copy_to_host(host, p->device + from, bytes, stream)",
        "copy_to_host(host, p->device, bytes, stream)",
    ),
    Mutant(
        "a stream that records a CUDA graph is accepted",
        "device/lane.c",
        "if (rc != PCOLL_OK || !capturing)",
        "if (rc != PCOLL_OK || capturing < 2)",
    ),
    Mutant(
        "a buffer may extend one byte past its allocation",
        "device/lane.c",
        "return behind <= a.start + a.size",
        "return behind <= a.start + a.size + 1",
    ),
    Mutant(
        "managed memory is reported at its current location, not at its device",
        "device/lane.c",
        "a.type == TYPE_DEVICE || a.managed ? a.device : PLACE_HOST",
        "a.type == TYPE_DEVICE ? a.device : PLACE_HOST",
    ),
    Mutant(
        "managed memory that resides on the host is refused as freed",
        "device/lane.c",
        "if (a.type != TYPE_DEVICE && !a.managed)",
        "if (a.type != TYPE_DEVICE)",
    ),
    Mutant(
        "a forked child uses the CUDA driver of its parent",
        "device/lane.c",
        "if (owner != getpid())",
        "if (owner == 0)",
    ),
    Mutant(
        "a pull begins while a push still reads host memory",
        "device/lane.c",
        "return lane_poll(m, LANE_TO_DEVICE) ?: lane_poll(m, LANE_TO_HOST);",
        "return lane_poll(m, LANE_TO_HOST);",
    ),
    Mutant(
        "the caller's stream does not wait for a push",
        "device/lane.c",
        "return mirror_begin(m, LANE_TO_DEVICE, pieces, count, stream)\n"
        "               ?: lane_order(m, stream);",
        "return mirror_begin(m, LANE_TO_DEVICE, pieces, count, stream);",
    ),
    Mutant(
        "a rank arrives before its copy to the host is complete",
        "allreduce/staging.c",
        "int rc = lane_poll(s->mirror, LANE_TO_HOST)",
        "int rc = PCOLL_OK",
        program="staging",
    ),
    Mutant(
        "a rank arrives while its result is still being copied to the device",
        "allreduce/staging.c",
        "?: lane_poll(s->mirror, LANE_TO_DEVICE)\n                 ?: d->ops->deposit",
        "?: d->ops->deposit",
        program="staging",
    ),
    Mutant(
        "two threads can make the same deposit",
        "allreduce/staging.c",
        "return atomic_compare_exchange_strong(&s->state, &copying, HELD);",
        "if (atomic_load(&s->state) == ARRIVED)\n        return false;\n"
        "    nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL); /* as if another came */\n"
        "    atomic_store(&s->state, HELD);\n    return copying;",
        program="staging",
    ),
    Mutant(
        "a deposit whose copy failed is treated as made",
        "allreduce/staging.c",
        "if (rc != PCOLL_OK && rc != PCOLL_EAGAIN)\n        staging_keep_failure(s, rc);",
        "",
        program="staging",
    ),
    Mutant(
        "float16 results are copied to the device without conversion",
        "allreduce/staging.c",
        "if (!null && !staging_has_another_form(p))",
        "if (!null)",
        program="staging",
    ),
    Mutant(
        "pinned memory is never unpinned",
        "device/lane.c",
        "cuda.host_unregister(m->pinned[--m->pins]);",
        "m->pins--;",
        program="staging",
    ),
    Mutant(
        "addresses are not checked before a copy",
        "device/lane.c",
        "rc = place_check(pieces",
        "rc = 0 * place_check(pieces",
        program="staging",
    ),
]
