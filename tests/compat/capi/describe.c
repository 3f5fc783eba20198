/* SPDX-License-Identifier: Apache-2.0 */
/* pcoll_handle_describe: calls of several forms in one handle, ranks whose calls
 * differ, and refusals. Argument: the domain, node or rank. */
#include "handles.h"

enum { COUNT = 1000, CALLS = 200 };

static pcoll_handle *make(int described, pcoll_policy policy, int domain, int rc)
{
    pcoll_handle *handle = NULL;
    MPI_Comm world = MPI_COMM_WORLD;
    pcoll_buffer buffer = {.count = COUNT * sizeof(double), .dtype = PCOLL_UINT8};
    pcoll_options options;
    pcoll_options_init(&options);
    options.policy = policy;
    options.domain = domain;
    options.described = described;
    options.progress = PCOLL_PROGRESS_MANUAL;
    CHECK(pcoll_allreduce_create(&world, &buffer, 1, &options, &handle) == rc);
    return handle;
}

static int take(pcoll_handle *h, void *out)
{
    void *recv = out;
    pcoll_round round;
    int rc;
    while ((rc = pcoll_handle_take(h, 1000000, &recv, &round, NULL)) == PCOLL_EAGAIN)
        ;
    CHECK(round.differ == (rc == PCOLL_EMISMATCH) && round.active == (uint32_t)size);
    return rc;
}

/* Make the call with this number, each in another form. */
static int call(pcoll_handle *h, int as)
{
    static const int32_t dtypes[] = {PCOLL_FLOAT64, PCOLL_INT32, PCOLL_FLOAT32};
    double reals[COUNT];
    int32_t numbers[COUNT];
    float singles[COUNT];
    void *memory[] = {reals, numbers, singles};
    pcoll_buffer form = {.count = (uint64_t)(as * 37 % COUNT),
                         .dtype = dtypes[as % 3],
                         .op = as % 2 ? PCOLL_MAX : PCOLL_SUM};
    for (int i = 0; i < COUNT; i++) {
        reals[i] = rank + 1;
        numbers[i] = rank + 1;
        singles[i] = (float)(rank + 1);
    }
    const void *send = memory[as % 3];
    CHECK(pcoll_handle_describe(h, &form, (uint64_t)as + 1) == PCOLL_OK);
    CHECK(pcoll_handle_start(h, &send) == PCOLL_OK);
    int rc = take(h, memory[as % 3]);
    int expected = rc != PCOLL_OK ? rank + 1 : as % 2 ? size : size * (size + 1) / 2;
    for (uint64_t i = 0; i < form.count; i++) {
        CHECK(as % 3 != 0 || reals[i] == expected);
        CHECK(as % 3 != 1 || numbers[i] == expected);
        CHECK(as % 3 != 2 || singles[i] == (float)expected);
    }
    CHECK(form.count == COUNT || reals[COUNT - 1] == rank + 1); /* beyond the end */
    return rc;
}

/* One rank after the other makes a different call, which all ranks detect. */
static void forms(int domain)
{
    pcoll_handle *h = make(1, (pcoll_policy){.kind = PCOLL_FULL}, domain, PCOLL_OK);
    for (int t = 0; t < CALLS; t++) {
        int mistaken = size > 1 && t % 7 == 3, mine = mistaken && t % size == rank;
        int rc = call(h, mine ? t + CALLS + t % 11 : t);
        CHECK(rc == (mistaken ? PCOLL_EMISMATCH : PCOLL_OK));
    }
    for (int t = 0; t < 20 && size > 1;
         t++) { /* the same number, another form on one rank */
        double x[COUNT] = {1};
        const void *send = x;
        int mine = t % size == rank;
        pcoll_buffer form = {.count = mine && t % 2 ? 0 : COUNT,
                             .dtype = mine && t % 4 == 2 ? PCOLL_INT64 : PCOLL_FLOAT64,
                             .op = mine && t % 4 == 0 ? PCOLL_MAX : PCOLL_SUM};
        CHECK(pcoll_handle_describe(h, &form, t % 3 ? 9 : 0) == PCOLL_OK);
        CHECK(pcoll_handle_start(h, &send) == PCOLL_OK);
        CHECK(take(h, x) == PCOLL_EMISMATCH);
    }
    pcoll_buffer large = {.count = COUNT + 8, .dtype = PCOLL_FLOAT64};
    pcoll_buffer wrong = {.count = 1, .dtype = PCOLL_FLOAT32, .op = PCOLL_BOR};
    refuse(pcoll_handle_describe(h, &large, 1), PCOLL_EINVAL, "at most");
    refuse(pcoll_handle_describe(h, &wrong, 1), PCOLL_EINVAL, "op");
    refuse(pcoll_handle_join(h), PCOLL_ESTATE, "every rank");
    refuse(pcoll_handle_leave(h), PCOLL_ESTATE, "every rank");
    end(&h);
}

/* A handle of one form compares numbers only. A rank without one agrees with all. */
static void numbers(int domain)
{
    double x[COUNT] = {1}, y[COUNT];
    const void *send = x;
    pcoll_handle *h = make(0, (pcoll_policy){.kind = PCOLL_FULL}, domain, PCOLL_OK);
    for (int t = 0; t < 20; t++) {
        int mistaken = size > 1 && t % 3 == 0;
        uint64_t mine = mistaken ? (uint64_t)rank + 1 : rank == t % size ? 0 : 5;
        CHECK(pcoll_handle_describe(h, NULL, mine) == PCOLL_OK);
        CHECK(pcoll_handle_start(h, &send) == PCOLL_OK);
        CHECK(take(h, y) == (mistaken ? PCOLL_EMISMATCH : PCOLL_OK));
    }
    pcoll_buffer form = {.count = 1, .dtype = PCOLL_FLOAT32};
    refuse(pcoll_handle_describe(h, &form, 1), PCOLL_ESTATE, "options.described");
    CHECK(pcoll_handle_start(h, &send) == PCOLL_OK);
    refuse(pcoll_handle_describe(h, NULL, 1), PCOLL_ESTATE, "between");
    take(h, y);
    end(&h);
    h = make(0, (pcoll_policy){.kind = PCOLL_SOLO}, domain, PCOLL_OK);
    refuse(pcoll_handle_describe(h, NULL, 1), PCOLL_ESTATE, "quorum");
    end(&h);
    make(1, (pcoll_policy){.kind = PCOLL_SOLO}, domain, PCOLL_EINVAL);
}

/* The last rank does not start a round of the others. All can free the handle. */
static void ended(int domain, int before)
{
    pcoll_buffer form = {.count = 5, .dtype = PCOLL_INT32, .op = PCOLL_SUM};
    pcoll_handle *h = make(1, (pcoll_policy){.kind = PCOLL_FULL}, domain, PCOLL_OK);
    for (int t = 0; t < before; t++)
        CHECK(call(h, t) == PCOLL_OK);
    if (size > 1 && rank < size - 1) {
        int32_t x[] = {1, 2, 3, 4, 5};
        const void *send = x;
        CHECK(pcoll_handle_describe(h, &form, 1) == PCOLL_OK);
        CHECK(pcoll_handle_start(h, &send) == PCOLL_OK);
    }
    end(&h);
}

int main(int argc, char **argv)
{
    int domain =
        argc > 1 && !strcmp(argv[1], "rank") ? PCOLL_DOMAIN_RANK : PCOLL_DOMAIN_NODE;
    begin(&argc, &argv);
    forms(domain);
    numbers(domain);
    ended(domain, 0);
    ended(domain, 3);
    SAY("fine\n");
    MPI_Finalize();
    return 0;
}
