/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmark of skewed arrival in virtual time: any number of ranks in one process,
 * each with its own communicator and endpoint over transport/sim. Source: Li et al.,
 * PPoPP 2020, section 6.1 (what is measured).
 *
 * An iteration ends when no event is left. A rank that has started and waits is polled
 * whenever an event concerns it.
 */
#include <malloc.h>
#include <stdlib.h>

#include "allreduce/endpoint.h"
#include "base/memory.h"
#include "include/simulator.h"
#include "transport/sim/sim_transport.h"

enum { AGENT_LOOKS, START };
enum { MAX_RANKS = 1 << 20, VALUES = 7 }; /* rank r contributes r mod 7 + 1 */

/* One hour: the skews of a million ranks then fit the clock. No iteration may begin
 * after LATEST. */
static double const LONGEST_SKEW = 3.6e12;
static int64_t const LATEST = INT64_MAX / 2;

struct skew_rank {
    struct communicator *communicator;
    struct endpoint *endpoint;
    int64_t started;
    bool waiting, active;
};

struct pcoll_skew_run {
    pcoll_skew skew;
    struct sim *sim;
    struct skew_rank *ranks;
    uint64_t *masks;
    float *buffer;
    uint64_t round;
    bool exact; /* late="drop": the sum follows from the mask */
    /* For the current iteration: */
    int64_t last_active;
    uint32_t waiting;
    uint64_t sum, summed; /* sum over the mask of round summed - 1 */
    double *latency;
    pcoll_skew_result result;
    int32_t initiator;
    const double *starts; /* by rank; NULL: from the skew */
    char *data;           /* rows of the ranks; NULL: use the buffer */
};

static int skew_check(const pcoll_skew *s)
{
    if (s->ranks < 1 || s->ranks > MAX_RANKS)
        return fail(PCOLL_EINVAL, "ranks: expected 1 to %d, got %u", MAX_RANKS,
                    s->ranks);
    if (!(s->skew >= 0 && s->skew <= LONGEST_SKEW))
        return fail(PCOLL_EINVAL, "skew: expected 0 to %g ns, got %g", LONGEST_SKEW,
                    s->skew);
    if (s->dtype != PCOLL_FLOAT32 && s->dtype != PCOLL_FLOAT64)
        return fail(PCOLL_EINVAL, "dtype: expected float32 or float64");
    return PCOLL_OK;
}

static pcoll_buffer skew_buffer(const pcoll_skew *s)
{
    return (pcoll_buffer){.count = s->count, .dtype = s->dtype, .op = PCOLL_SUM};
}

static int skew_create_rank(struct pcoll_skew_run *run, uint32_t i,
                            const pcoll_options *options)
{
    struct skew_rank *rank = &run->ranks[i];
    pcoll_buffer buffer = skew_buffer(&run->skew);
    struct endpoint_spec spec = {.ranks = run->skew.ranks,
                                 .buffers = &buffer,
                                 .nbuffers = 1,
                                 .options = options};
    return communicator_create(sim_endpoint(run->sim, i), NULL, &rank->communicator)
               ?: endpoint_create(rank->communicator, &spec, &rank->endpoint)
               ?: endpoint_settle_alone(rank->endpoint)
               ?: endpoint_open(rank->endpoint)
               ?: communicator_register(rank->communicator, &rank->endpoint->base, 0);
}

int pcoll_skew_create(const pcoll_skew *skew, const pcoll_options *options,
                      pcoll_skew_run **out)
{
    uint64_t bytes;
    int rc = fail_if_null_as("run", out)
                 ?: pcoll_skew_memory(skew, options, &bytes); /* checks the arguments */
    if (rc != PCOLL_OK)
        return rc;
#ifdef M_MMAP_THRESHOLD /* glibc */
    /* Take the memory of all ranks from one heap. A rank uses few bytes of the room for headers, so
     * blocks that begin and end in pages of their own would take several times the memory. This
     * changes the whole process, so small simulations do without. */
    enum { MANY = 1024, MOST = 4 << 20 };
    if (skew->ranks >= MANY)
        mallopt(M_MMAP_THRESHOLD, MOST);
#endif
    struct pcoll_skew_run *run = sim_must(calloc(1, sizeof *run));
    struct sim_options how = {
        .size = skew->ranks, .seed = skew->seed, .network = skew->network};
    run->skew = *skew;
    run->exact = options->late == PCOLL_LATE_DROP;
    run->ranks = sim_must(calloc(skew->ranks, sizeof *run->ranks));
    run->masks = sim_must(calloc(3 * bitset_words(skew->ranks), sizeof *run->masks));
    run->buffer = sim_must(calloc(skew->count + 1, sizeof *run->buffer));
    rc = sim_create(&how, &run->sim);
    for (uint32_t i = 0; i < skew->ranks && rc == PCOLL_OK; i++)
        rc = skew_create_rank(run, i, options);
    if (rc != PCOLL_OK)
        pcoll_skew_free(&run);
    *out = run;
    return rc;
}

int pcoll_skew_free(pcoll_skew_run **at)
{
    struct pcoll_skew_run *run = at ? *at : NULL;
    if (!run)
        return PCOLL_OK;
    for (uint32_t i = 0; i < run->skew.ranks; i++) {
        struct skew_rank *rank = &run->ranks[i];
        if (rank->endpoint)
            endpoint_destroy(&rank->endpoint);
        if (rank->communicator)
            communicator_destroy(&rank->communicator);
    }
    if (run->sim)
        sim_free(&run->sim);
    free(run->ranks);
    free(run->masks);
    free(run->buffer);
    free(run);
    *at = NULL;
    return PCOLL_OK;
}

static void *skew_row(struct pcoll_skew_run *run, uint32_t i)
{
    size_t bytes = run->skew.count * (run->skew.dtype == PCOLL_FLOAT32 ? 4 : 8);
    return run->data ? run->data + i * bytes : (char *)run->buffer;
}

static int skew_start(struct pcoll_skew_run *run, uint32_t i)
{
    struct skew_rank *rank = &run->ranks[i];
    struct domain *domain = rank->endpoint->domain;
    enum deposit_outcome outcome;
    const void *send[] = {skew_row(run, i)};
    for (uint64_t e = 0; e < run->skew.count && !run->data; e++)
        run->buffer[e] = (float)(i % VALUES + 1);
    int rc = domain->ops->deposit(domain, send, &outcome);
    if (rc != PCOLL_OK)
        return rc;
    endpoint_deposited(rank->endpoint, outcome);
    rank->started = sim_now(run->sim);
    rank->waiting = true;
    return PCOLL_OK;
}

/* Count the elements that differ from the sum over the mask. That the ranks agree on the mask is
 * tested elsewhere. */
static uint64_t skew_count_wrong(struct pcoll_skew_run *run)
{
    uint64_t wrong = 0;
    if (run->summed != run->round + 1) {
        run->sum = 0;
        for (uint32_t i = 0; i < run->skew.ranks; i++)
            run->sum += bitset_has(run->masks, i) ? i % VALUES + 1 : 0;
        run->summed = run->round + 1;
    }
    for (uint64_t e = 0; e < run->skew.count; e++)
        wrong += run->buffer[e] != (float)run->sum;
    return wrong;
}

static int skew_finish(struct pcoll_skew_run *run, uint32_t i)
{
    struct skew_rank *rank = &run->ranks[i];
    struct domain *domain = rank->endpoint->domain;
    void *recv[] = {skew_row(run, i)};
    pcoll_round round;
    bool moved, counts = run->exact && !run->data;
    run->latency[i] = (double)(sim_now(run->sim) - rank->started);
    run->waiting--;
    rank->waiting = false;
    /* All ranks have the same masks. */
    uint64_t *masks = counts && run->summed != run->round + 1 ? run->masks : NULL;
    int rc = domain->ops->deliver(domain, run->round, UINT64_MAX, recv, &round, masks,
                                  &moved);
    if (rc != PCOLL_OK)
        return rc;
    run->result.active = round.active;
    run->result.wrong += counts ? skew_count_wrong(run) : 0;
    run->initiator = round.initiator;
    if (moved)
        communicator_notify(rank->communicator, &rank->endpoint->base);
    return domain->ops->change(domain, member_finish);
}

static int skew_run_rank(struct pcoll_skew_run *run, uint32_t i)
{
    struct skew_rank *rank = &run->ranks[i];
    struct domain *domain = rank->endpoint->domain;
    while (communicator_poll(rank->communicator) > 0)
        ;
    if (!rank->active &&
        (rank->endpoint->engine.current > run->round || rank->endpoint->frozen)) {
        rank->active = true;
        run->last_active = sim_now(run->sim);
    }
    int rc = communicator_check(rank->communicator);
    if (rc == PCOLL_OK && rank->waiting && domain->ops->ready(domain))
        rc = skew_finish(run, i);
    return rc;
}

static int skew_begin(struct pcoll_skew_run *run, double *latency)
{
    run->latency = latency;
    run->result = (pcoll_skew_result){.messages = sim_messages(run->sim)};
    run->waiting = run->skew.ranks;
    int64_t now = sim_now(run->sim), rest = sim_free_at(run->sim) - now;
    if (now > LATEST)
        return fail(PCOLL_EINVAL,
                    "iterations: the simulated clock ends after %g years: fewer of "
                    "them, or less skew",
                    LATEST / 3.15576e16);
    for (uint32_t i = 0; i < run->skew.ranks; i++) {
        double late = run->starts ? run->starts[i] : run->skew.skew * i;
        run->ranks[i].active = false;
        sim_wake(run->sim, i, (rest > 0 ? rest : 0) + (int64_t)late, START);
    }
    return PCOLL_OK;
}

int pcoll_skew_iterate(pcoll_skew_run *run, double *latency, pcoll_skew_result *result)
{
    struct sim_stop stop;
    int rc = fail_if_null(run, latency, result) ?: skew_begin(run, latency);
    while (rc == PCOLL_OK && sim_step(run->sim, &stop)) {
        if (stop.woken && stop.token == START)
            rc = skew_start(run, stop.rank);
        if (rc == PCOLL_OK)
            rc = skew_run_rank(run, stop.rank);
    }
    if (rc == PCOLL_OK && run->waiting)
        rc = fail(PCOLL_EPROTOCOL, "%u ranks wait and nothing is left to happen",
                  run->waiting);
    if (rc != PCOLL_OK)
        return rc;
    run->round++;
    run->result.messages = sim_messages(run->sim) - run->result.messages;
    if (run->initiator >= 0)
        run->result.activation =
            (double)(run->last_active - run->ranks[run->initiator].started);
    *result = run->result;
    return PCOLL_OK;
}

int pcoll_skew_reduce(pcoll_skew_run *run, const double *starts, void *data,
                      double *latency)
{
    pcoll_skew_result result;
    int rc = fail_if_null(run, starts, data, latency);
    if (rc != PCOLL_OK)
        return rc;
    run->starts = starts;
    run->data = data;
    rc = pcoll_skew_iterate(run, latency, &result);
    run->starts = NULL;
    run->data = NULL;
    return rc;
}

uint64_t pcoll_memory_left(void)
{
    return memory_left();
}

int pcoll_skew_memory(const pcoll_skew *s, const pcoll_options *options,
                      uint64_t *bytes)
{
    struct round_shape shape;
    struct algorithm_plan plan;
    int rc = fail_if_null_as("skew, options, bytes", s, options, bytes);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_buffer buffer = skew_buffer(s);
    struct endpoint_spec spec = {
        .ranks = s->ranks, .buffers = &buffer, .nbuffers = 1, .options = options};
    rc = skew_check(s)
             ?: options_check(options)
             ?: endpoint_lay_out(&spec, &(struct placement){.domains = s->ranks}, &shape,
                                 &plan);
    if (rc != PCOLL_OK)
        return rc;
    uint64_t operations =
        (uint64_t)activation_edges(s->ranks) + algorithm_operations(&plan, s->ranks);
    uint64_t tables = 4096 + 128 * operations; /* schedule, engine, lanes, events */
    /* Memory that a run uses: the data of deposits, results, temporaries and messages, and the
     * sets of a contribution, a result and the temporaries. */
    uint64_t temps = (uint64_t)plan.temps;
    *bytes = s->ranks * ((7 + temps) * shape.payload.bytes +
                         (2 + temps) * shape.header_bytes + tables);
    round_shape_destroy(&shape);
    return PCOLL_OK;
}
