/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partialcoll: collectives for ranks that do not arrive together.
 *
 * The C interface; docs/c.md explains it. Conventions:
 *   - A function returns PCOLL_OK or a negative PCOLL_E code; pcoll_last_error() is the message of
 *     the last failure on this thread.
 *   - The object is the first argument; answers are stored through pointers at the end. A free
 *     function takes the address of the object and stores NULL there.
 *   - A pointer may be NULL only if the comment lists it after "May be NULL:", under the condition
 *     in parentheses. Otherwise the function returns PCOLL_EINVAL, and the message names the
 *     argument; functions without a result do nothing then.
 *   - "Collective": every rank of the communicator calls it, in the same order as its other
 *     collectives. "Local": it does not wait for other ranks.
 *   - One thread at a time uses an object; a second one gets PCOLL_ESTATE.
 *
 * The Python layer is generated from the text between the two markers: plain declarations only.
 */
#ifndef PARTIALCOLL_H
#define PARTIALCOLL_H

#include <stdint.h>

#define PCOLL_API __attribute__((visibility("default")))

/* The version of this header; pcoll_version() is that of the library. */
#define PCOLL_VERSION_MAJOR 0
#define PCOLL_VERSION_MINOR 1
#define PCOLL_VERSION_PATCH 0
#define PCOLL_VERSION                                                                  \
    (10000 * PCOLL_VERSION_MAJOR + 100 * PCOLL_VERSION_MINOR + PCOLL_VERSION_PATCH)
/* Whether a library of this version runs programs compiled with this header (docs/c.md). */
#define PCOLL_VERSION_FITS(library)                                                    \
    ((library) >= PCOLL_VERSION &&                                                     \
     (library) / (PCOLL_VERSION_MAJOR ? 10000 : 100) ==                                \
         PCOLL_VERSION / (PCOLL_VERSION_MAJOR ? 10000 : 100))

/* The longest linger and deadline, in seconds. */
#define PCOLL_LONGEST_TIME 1e6

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)
/* cffi:begin */

/* Results of functions. */
enum pcoll_result {
    PCOLL_OK = 0,
    PCOLL_EAGAIN = -1,    /* not complete yet: call again */
    PCOLL_EEMPTY = -2,    /* nothing to deliver */
    PCOLL_EINVAL = -3,    /* bad argument */
    PCOLL_ESTATE = -4,    /* not allowed in this state (freed, not started, in use …) */
    PCOLL_EMISMATCH = -5, /* the ranks disagree about an argument, or what they call */
    PCOLL_ENOMEM = -6,
    PCOLL_EMPI = -7,      /* MPI failed: pcoll_last_mpi_error() has its code */
    PCOLL_EPROTOCOL = -8, /* a message that cannot be: a bug, or a corrupted message */
    PCOLL_ETHREAD = -9,   /* MPI's thread level is too low for what was asked */
    PCOLL_EFAILED = -10   /* ranks have died: pcoll_failed_ranks() has them */
};

/* float16 and bfloat16 are accumulated in float32 and rounded once, in the result. bool is one
 * byte, 0 or 1. */
enum pcoll_dtype {
    PCOLL_FLOAT32,
    PCOLL_FLOAT64,
    PCOLL_INT32,
    PCOLL_INT64,
    PCOLL_FLOAT16,
    PCOLL_BFLOAT16,
    PCOLL_COMPLEX64,
    PCOLL_COMPLEX128,
    PCOLL_INT8,
    PCOLL_INT16,
    PCOLL_UINT8,
    PCOLL_UINT16,
    PCOLL_UINT32,
    PCOLL_UINT64,
    PCOLL_BOOL,
    PCOLL_MPI_TYPE /* the MPI_Datatype at pcoll_buffer.mpi_type */
};

/* MPI's ops: SUM to MAX for floats, SUM and PROD for complex numbers, all for integers, LAND to
 * LXOR for bool. Integers wrap around. MIN and MAX keep the left operand unless the right one is
 * smaller (larger): a NaN on the left stays, one on the right is ignored. */
enum pcoll_op {
    PCOLL_SUM,
    PCOLL_PROD,
    PCOLL_MIN,
    PCOLL_MAX,
    PCOLL_LAND,
    PCOLL_LOR,
    PCOLL_LXOR,
    PCOLL_BAND,
    PCOLL_BOR,
    PCOLL_BXOR,
    PCOLL_MPI_OP /* the MPI_Op at pcoll_buffer.mpi_op */
};

/* When a round may complete (see docs/semantics.md). */
enum pcoll_policy_kind {
    PCOLL_SOLO,
    PCOLL_MAJORITY,
    PCOLL_FULL,
    PCOLL_QUORUM,
    PCOLL_FIRST_OF,
    PCOLL_LAST_OF
};

/* How the data of a round is reduced (see docs/algorithms.md). */
enum pcoll_algorithm {
    PCOLL_ALGORITHM_AUTO, /* by the number of ranks and bytes */
    PCOLL_ALGORITHM_RECDBL,
    PCOLL_ALGORITHM_RABENSEIFNER,
    PCOLL_ALGORITHM_RING,
    PCOLL_ALGORITHM_NATIVE /* MPI_Iallreduce, as one operation of the schedule */
};

/* Which rounds a call returns. */
enum pcoll_deliver { PCOLL_DELIVER_ONE, PCOLL_DELIVER_ALL };

/* The treatment of a deposit that misses its round. */
enum pcoll_late { PCOLL_LATE_CARRY, PCOLL_LATE_LATEST, PCOLL_LATE_DROP };

/* The driver of communication while the application computes. */
enum pcoll_progress {
    PCOLL_PROGRESS_AGENT,
    PCOLL_PROGRESS_MANUAL,
    PCOLL_PROGRESS_SPIN
};

/* Which ranks reduce in shared memory, so that only one of them communicates with others. */
enum pcoll_domain {
    PCOLL_DOMAIN_NODE, /* the ranks of a node; an error without shared memory */
    PCOLL_DOMAIN_RANK, /* each rank is a domain: messages only */
    PCOLL_DOMAIN_AUTO  /* NODE, or RANK without shared memory */
};

/* A handle after the death of a rank (docs/faults.md). RAISE: calls return PCOLL_EFAILED. CONTINUE:
 * the other ranks continue without it, if MPI supports that. */
enum pcoll_failure { PCOLL_FAILURE_RAISE, PCOLL_FAILURE_CONTINUE };

typedef struct pcoll_policy {
    int32_t kind;    /* enum pcoll_policy_kind */
    uint32_t count;  /* FIRST_OF, LAST_OF: ranks drawn; QUORUM: ranks, or 0 for … */
    double fraction; /* … QUORUM: this part of the ranks, above 0, at most 1 */
    double linger;   /* seconds to wait after the policy is met; 0: none */
    double deadline; /* seconds after the first arrival; 0: none */
    uint32_t max_staleness; /* rounds that a rank may miss in a row; 0: any number */
} pcoll_policy;

/*
 * One buffer of a handle: count elements of dtype, reduced with op.
 *
 * With PCOLL_MPI_TYPE or PCOLL_MPI_OP MPI_Reduce_local reduces it: any commutative op, any
 * predefined datatype, and derived ones without gaps (lower bound 0, extent = size; only with ops
 * of the user, as in MPI). Both are read when the handle is created. A derived datatype may be
 * freed then; the op must live as long as the handle. Such a reduction has no identity: a round
 * without contributions (pcoll_round.active is 0) leaves the receive buffer unchanged. It is not
 * detected if ranks give different ops of their own.
 */
typedef struct pcoll_buffer {
    uint64_t count;
    int32_t dtype;        /* enum pcoll_dtype */
    int32_t op;           /* enum pcoll_op */
    const void *mpi_type; /* address of an MPI_Datatype, or NULL */
    const void *mpi_op;   /* address of an MPI_Op, or NULL */
} pcoll_buffer;

typedef struct pcoll_options {
    pcoll_policy policy;
    int32_t algorithm;  /* enum pcoll_algorithm */
    int32_t deliver;    /* enum pcoll_deliver */
    int32_t late;       /* enum pcoll_late */
    int32_t progress;   /* enum pcoll_progress; may differ between ranks */
    int32_t owned_send; /* 1: deposits are written into pcoll_handle_send_slot() */
    uint32_t history;   /* results kept, at least 1 */
    uint64_t seed;      /* of the draws; the same on all ranks */
    uint64_t name;      /* hash of the handle's name: names must agree as well */
    int32_t invalid; /* 1: this rank's arguments are wrong, only let the others know */
    int32_t domain;  /* enum pcoll_domain */
    uint32_t domain_ranks; /* NODE, AUTO: most ranks in a domain; 0: all of a node */
    int32_t device; /* 1 + number of the device of this rank's buffers (owned_send) */
    int32_t on_failure; /* enum pcoll_failure */
    int32_t described;  /* 1: pcoll_handle_describe gives each call its form */
} pcoll_options;

/* Set Python's defaults: full, PCOLL_DELIVER_ONE, PCOLL_LATE_CARRY (for PCOLL_SUM only), the agent,
 * one domain for each node, 8 results. Zeros are refused; the environment is not read. Local. */
void pcoll_options_init(pcoll_options *options);

/* The description of one delivered round. */
typedef struct pcoll_round {
    uint64_t index;
    uint64_t lag;      /* complete rounds that this rank has not been given yet */
    uint64_t lost;     /* rounds skipped just before this one, older than the history */
    uint32_t active;   /* ranks that contributed fresh data */
    uint32_t stored;   /* of them, with a deposit from before the round only */
    int32_t initiator; /* lowest rank whose own arrival started the round; -1: none */
    int32_t included;  /* 1: this rank's last deposit is in this round or before it */
    int32_t below_quorum;
    int32_t joined;  /* 1: with this round all ranks have joined */
    uint32_t failed; /* ranks that have died before it (PCOLL_FAILURE_CONTINUE) */
    int32_t differ;  /* 1: the ranks differ in what they call, and there is no result */
} pcoll_round;

typedef struct pcoll_stats {
    uint64_t calls;     /* deposits handed in */
    uint64_t rounds;    /* rounds complete on this rank */
    uint64_t delivered; /* rounds given to the application */
    uint64_t lost;      /* rounds never given: older than the history */
    uint64_t arrived;   /* deposits that arrived at their round */
    uint64_t stored;    /* deposits that arrived while their round ran or after it */
    uint64_t dropped;   /* deposits forgotten (late="drop") */
    uint64_t included;  /* rounds this rank contributed fresh data to */
    uint64_t activations_dropped; /* duplicate or late activations, harmless */
    uint64_t activations_early;   /* activations of the next round that were kept */
    uint64_t redone; /* rounds begun once more since a rank had died in them */
} pcoll_stats;

typedef struct pcoll_handle pcoll_handle;

/* PCOLL_VERSION of the library. Local. */
int pcoll_version(void);
/* The message of the last failure on this thread. Never NULL. Local. */
const char *pcoll_last_error(void);
/* For wrappers that check arguments: tell the other ranks why the arguments that this thread gives
 * next are not valid. Local. */
void pcoll_refuse(const char *why);
/* MPI's error code of the last PCOLL_EMPI or PCOLL_EFAILED on this thread; MPI_SUCCESS: no call
 * has failed, but this MPI cannot do what was asked for. Local. */
int pcoll_last_mpi_error(void);
/* Return the number of dead ranks that caused the last PCOLL_EFAILED on this thread, and write up
 * to `capacity` of them: ranks of the communicator that was used, 64 at most. May be NULL: ranks.
 * Local. */
int pcoll_failed_ranks(int32_t *ranks, int capacity);
/* 1: when a rank of this job dies, calls on the others return PCOLL_EFAILED; 0: the job ends.
 * Local. */
int pcoll_tells_of_failures(void);
/* For wrappers that create several objects on a communicator, in jobs that survive deaths. Store a
 * communicator of the living ranks of `comm` in `living`, an MPI_Comm that the caller frees; and
 * return 0 on all ranks if `rc` is 0 on all, else an error on each. Collective. */
int pcoll_shrink(const void *comm, void *living);
int pcoll_all_have(const void *comm, int rc);
/* The MPI that the core was compiled with, "mpich" or "openmpi"; size of its MPI_Comm. Local. */
const char *pcoll_built_with(void);
uint64_t pcoll_sizeof_comm(void);
/* MPI_Get_library_version of the MPI this core calls (legal before MPI_Init). Local. */
int pcoll_library_version(char *text, int capacity);

/* Parse a policy: "solo", "majority", "quorum:6", "quorum:0.75", "first_of:2", "last_of:3",
 * "full", each with any of ",linger=50us,deadline=2s,max_staleness=8". PCOLL_EINVAL with a message
 * otherwise; *policy is then as it was. Local. */
int pcoll_policy_parse(const char *text, pcoll_policy *policy);
/* Write the canonical text of a policy. Local. */
int pcoll_policy_format(const pcoll_policy *policy, char *text, uint64_t capacity);

/* Parse the name of an algorithm: "auto", "recdbl", "rabenseifner", "ring" or "native".
 * PCOLL_EINVAL with a message otherwise; *algorithm is then as it was. Local. */
int pcoll_algorithm_parse(const char *text, int32_t *algorithm);
/* The file that PCOLL_ALGORITHM_AUTO reads, if it is there, or "none": $PARTIALCOLL_TUNE, else
 * partialcoll/tune.txt in the user's configuration. Local. */
int pcoll_tuning_path(char *path, uint64_t capacity);

/*
 * These functions decide whether MPI or this library does a complete round of a call shaped like
 * MPI_Allreduce (docs/interposer.md). All ranks must decide alike without a message in each call:
 *
 *   pcoll_full_look     each rank fills in what it knows; the ranks combine `words` with MPI_BOR
 *   pcoll_full_settle   each rank knows the facts, which are the same on all
 *   pcoll_full_pays     each call decides by the facts and by the calls before it
 *
 * A handle costs milliseconds. So calls are MPI's until the time that rounds here would have saved
 * adds up to that: at worst twice the time of the better choice (ski rental).
 */
enum { PCOLL_FULL_WORDS = 21, PCOLL_FULL_LINES = 16 };
typedef struct pcoll_full_facts {
    uint64_t words[21];
    int32_t open_mpi, one_node;
    int32_t crowded;       /* more ranks than cores */
    int32_t spins;         /* crowded, and a rank that waits in MPI keeps its core */
    int32_t tables_differ; /* of the ranks: the built-in one is used */
    uint32_t lines;        /* of the table; 0: the built-in one */
    uint64_t line_ranks[16], line_bytes[16];
} pcoll_full_facts;

/* open_mpi: the MPI is Open MPI. multiple: it runs with MPI_THREAD_MULTIPLE. PCOLL_EINVAL: the
 * table of `bench tune` is invalid, and counts as empty. Local. */
int pcoll_full_look(int32_t open_mpi, int32_t multiple, pcoll_full_facts *facts);
/* `ranks` have combined their words. Local. */
void pcoll_full_settle(pcoll_full_facts *facts, uint32_t ranks);
/* The shortest payload for which rounds here are faster, in bytes; UINT64_MAX: none. Local. */
uint64_t pcoll_full_from(const pcoll_full_facts *facts, uint32_t ranks);
/* One more call: 1: it is ours; 0: MPI's. *saved, 0 at first, belongs to one signature;
 * has_handles: the communicator has handles already. Local. */
int pcoll_full_pays(const pcoll_full_facts *facts, uint32_t ranks, uint64_t bytes,
                    int32_t has_handles, uint64_t *saved);

/* End the agent thread of this process, just before MPI_Finalize, in which some MPIs fail if
 * another thread is inside MPI; it also lets Open MPI's MPI_Finalize return after a death. This
 * library's MPI_Finalize and the Python package call it. Local. */
int pcoll_quiet(void);
/* Let this process end with status 1 if a record of arrivals (PARTIALCOLL_RECORD) could not be
 * written. Call it when only MPI_Finalize and exit follow, since launchers kill the other ranks
 * when one ends with an error. Local. */
int pcoll_record_status(void);
/* PCOLL_EINVAL: the op is not defined for the dtype; the message lists those that are. Local. */
int pcoll_op_check(int32_t op, int32_t dtype);

/* Parse "node", "rank", "auto", the first and last with ":K" for at most K ranks in a domain.
 * PCOLL_EINVAL with a message otherwise; nothing is changed then. Local. */
int pcoll_domain_parse(const char *text, int32_t *domain, uint32_t *domain_ranks);
/* Bytes of a handle on `ranks` ranks of one node, or of domain="rank". Local. */
int pcoll_memory_estimate(uint32_t ranks, const pcoll_buffer *buffers, int32_t nbuffers,
                          const pcoll_options *options, uint64_t *bytes);

/* Create a persistent allreduce on *comm, an MPI_Comm, which is dup'ed once and may be freed
 * before the handle. Collective. Arguments that differ between ranks give PCOLL_EMISMATCH on every
 * rank, here and in all functions below, except on_failure, which is not compared. */
int pcoll_allreduce_create(const void *comm, const pcoll_buffer *buffers,
                           int32_t nbuffers, const pcoll_options *options,
                           pcoll_handle **handle);

/* Replace dead ranks by new ones. Collective over *comm, an MPI_Comm of all living ranks of the
 * handle and of the new ones: its rank i has the number numbers[i], the same on all. New ranks
 * join, with the same arguments and PCOLL_FAILURE_CONTINUE; the others grow, between two rounds.
 * The handle is then on a duplicate of that communicator; `ranks` stays. A new rank first gets the
 * last round. `can_grow` checks locally what would be refused; a rank that cannot take part calls
 * `refuse` instead. An error is one of all ranks, and leaves the handle unchanged; PCOLL_EFAILED:
 * a rank has died meanwhile, or has refused. */
int pcoll_growth_refuse(const void *comm);
/* PCOLL_EFAILED, on all ranks of *comm, an MPI_Comm, if one of them has died. Collective. */
int pcoll_growth_check(const void *comm);
/* Open MPI's agreements must not overlap other MPI calls: keep the library's threads out of MPI
 * between the two calls, which one thread makes; `hold` them where that takes long (to spawn
 * processes). Local. */
void pcoll_mpi_enter(int32_t hold);
void pcoll_mpi_leave(int32_t hold);
int pcoll_handle_can_grow(pcoll_handle *handle);
int pcoll_handle_grow(pcoll_handle *handle, const void *comm, const uint32_t *numbers,
                      const pcoll_buffer *buffers, int32_t nbuffers,
                      const pcoll_options *options);
int pcoll_allreduce_join(const void *comm, const uint32_t *numbers, uint32_t ranks,
                         const pcoll_buffer *buffers, int32_t nbuffers,
                         const pcoll_options *options, pcoll_handle **handle);

/* Deposit this rank's contribution for the round that this call stands for, and trigger the round
 * if the policy allows. send[i] is buffer i, copied before the call returns; it may be NULL if the
 * buffer has no elements. May be NULL: send (owned_send). Local. PCOLL_ESTATE: the last start was
 * not waited for; PCOLL_EAGAIN: in a replay of recorded arrivals it is not this rank's turn. */
int pcoll_handle_start(pcoll_handle *handle, const void *const *send);

/* Wait until the round of the last start is complete, at most timeout_us microseconds (0: only
 * make progress); PCOLL_EAGAIN: it is not. Does not use a core. PCOLL_ESTATE: nothing is started.
 * After PCOLL_EMPI and PCOLL_EPROTOCOL the handle can only be freed. Local. */
int pcoll_handle_wait(pcoll_handle *handle, int64_t timeout_us);

/* Wait until the round of any of several started handles of this process is complete. *index is
 * the first such handle; NULL entries are skipped. */
int pcoll_wait_any(pcoll_handle *const *handles, int32_t count, int64_t timeout_us,
                   int32_t *index);

/* After a successful wait: copy the oldest undelivered round with index <= last into recv[i],
 * which has room for buffer i (NULL: it has no elements), and describe it. masks has room for 3 x
 * ranks/64 (rounded up) words: the ranks that contributed, those with a stored deposit only, and
 * the dead. PCOLL_EEMPTY: there is no such round. With recv NULL nothing is copied. May be NULL:
 * recv, masks. Local. */
int pcoll_handle_deliver(pcoll_handle *handle, uint64_t last, void *const *recv,
                         pcoll_round *round, uint64_t *masks);
/* Wait, deliver one round and finish: a step of a loop with deliver="one". PCOLL_EAGAIN: nothing
 * was delivered within timeout_us. May be NULL: recv, masks. Local. */
int pcoll_handle_take(pcoll_handle *handle, int64_t timeout_us, void *const *recv,
                      pcoll_round *round, uint64_t *masks);
/* Start and take `rounds` rounds of a handle with deliver="one", and measure the mean time of one
 * in microseconds, to compare the loop of a binding with. Describe the last round. Errors are
 * those of the two calls. May be NULL: send (owned_send), recv, masks. Local. */
int pcoll_handle_measure(pcoll_handle *handle, const void *const *send,
                         void *const *recv, uint64_t rounds, double *microseconds,
                         pcoll_round *round, uint64_t *masks);
/* Number of rounds complete on this rank, and of rounds delivered. Local. */
int pcoll_handle_rounds(pcoll_handle *handle, uint64_t *complete, uint64_t *delivered);
/* End of the call: the handle may be started again. Local. */
int pcoll_handle_finish(pcoll_handle *handle);
/* The ranks that have died, with PCOLL_FAILURE_CONTINUE: a set in ranks/64 (rounded up) words.
 * Local. */
int pcoll_handle_failed(pcoll_handle *handle, uint64_t *set);
/* Number of recoveries, and when the last one began and ended on this rank (nanoseconds of
 * CLOCK_MONOTONIC; 0: never). Local. */
int pcoll_handle_outages(pcoll_handle *handle, uint32_t *count, int64_t *began,
                         int64_t *ended);
/* The communicator of the living ranks, in the order of their ranks, for the caller's own
 * messages. The library keeps it, and the next death revokes it. *comm is an MPI_Comm;
 * PCOLL_EEMPTY: no rank has died. Local. */
int pcoll_handle_comm(pcoll_handle *handle, void *comm);

/* Reduce buffer `buffer` with another op from the next start on. mpi_type and mpi_op are the
 * addresses of an MPI_Datatype and of an MPI_Op, with the rules of pcoll_buffer; both must live
 * until the end of the last round before they are set again. All ranks must give the same, which
 * is not compared. PCOLL_EINVAL: not such a pair, or elements of another size; PCOLL_ESTATE: a
 * round is in progress, the rounds do not wait for all ranks (full, no deadline), or the handle
 * was not made with PCOLL_MPI_TYPE or PCOLL_MPI_OP. Any thread of this process that waits may run
 * an op, but one at a time, and only between start and the end of the wait of this rank. Local. */
int pcoll_handle_set_reduction(pcoll_handle *handle, int32_t buffer,
                               const void *mpi_type, const void *mpi_op);

/*
 * From the next start on, describe what this rank calls by a number, such as the hash of a text;
 * 0: not. If the numbers of ranks differ in a round, all ranks get PCOLL_EMISMATCH from the call
 * that would have delivered it, and no data; the next call works. (32 bits of the number's hash
 * are compared; a rank without a number agrees with all.)
 *
 * form: the count, dtype and op of the next calls of a handle that was made with
 * options.described, whose one buffer has room for it. (float16 and bfloat16 take the room of
 * float32.) The form is part of what is compared, also with number 0. Such a handle is full, has
 * no deadline, delivers "one" and reduces by recursive doubling; no rank can join or leave it.
 *
 * PCOLL_ESTATE: a round is in progress, or the rounds do not wait for all ranks (full, no
 * deadline). PCOLL_EINVAL: the form. May be NULL: form. Local.
 */
int pcoll_handle_describe(pcoll_handle *handle, const pcoll_buffer *form,
                          uint64_t intent);

/* The place of a buffer of a handle with options.device: on that device, or on the host. */
typedef struct pcoll_place {
    uint64_t address;
    int32_t on_host;
} pcoll_place;

/* With options.device, in place of pcoll_handle_start. Buffers on the device are copied after the
 * work that `stream` (a CUstream; 0: the default one) has been given so far, and must not change
 * before the copy is complete; this rank arrives then. The call returns at once. PCOLL_EINVAL:
 * memory or a stream of another device, or a stream that records a graph; PCOLL_ESTATE. Local. */
int pcoll_handle_start_device(pcoll_handle *handle, const pcoll_place *send,
                              uint64_t stream);
/* After pcoll_handle_take with recv NULL: copy the result to these buffers, between what `stream`
 * has been given so far and what it is given from now on. Returns at once. The next deposit waits
 * for the copy; call pcoll_handle_arrive before pcoll_handle_deliver, leave or free. PCOLL_EAGAIN:
 * the last result is still being copied. Local. */
int pcoll_handle_fetch_device(pcoll_handle *handle, const pcoll_place *recv,
                              uint64_t stream);
/* Wait until the last pcoll_handle_start_device has made its deposit. PCOLL_EAGAIN: after
 * timeout_us; and, at once, while a result is being copied to the device. Local. */
int pcoll_handle_arrive(pcoll_handle *handle, int64_t timeout_us);

/* The device of an address; -1: the host. PCOLL_ESTATE: this process has no CUDA driver. Local. */
int pcoll_device_of(uint64_t address, int32_t *device);
/* The number of CUDA devices, and 1000 times the driver's CUDA version. PCOLL_ESTATE. Local. */
int pcoll_device_count(int32_t *devices, int32_t *driver);
/* Return 1 if this process has loaded a CUDA driver that works, else 0. It loads none. Local. */
int pcoll_device_in_use(void);
/* The allocation that an address of a device lies in. PCOLL_EINVAL: none. Local. */
int pcoll_device_allocation(uint64_t address, uint64_t *begin, uint64_t *bytes);

/* A mirror: pinned host memory that mirrors memory of one device, for engines that work on the
 * host only. Pull, work on it, push; do not access the host memory from a pull or a push until
 * pcoll_mirror_wait returns PCOLL_OK. One thread at a time. All local. */
typedef struct pcoll_mirror pcoll_mirror;

/* `bytes` at `host`, which is in pinned memory, and at `device`. */
typedef struct pcoll_piece {
    void *host;
    uint64_t device;
    uint64_t bytes;
} pcoll_piece;

/* PCOLL_ESTATE: no CUDA driver; PCOLL_EINVAL: no such device; PCOLL_ENOMEM. */
int pcoll_mirror_create(int32_t device, pcoll_mirror **mirror);
/* Whole pages, each at most once; they must exist until the mirror is freed. */
int pcoll_mirror_pin(pcoll_mirror *mirror, void *memory, uint64_t bytes);
/* Begin to copy from the device, after what `stream` has been given so far. PCOLL_ESTATE: the last
 * copies are not complete; PCOLL_EINVAL as in pcoll_handle_start_device. */
int pcoll_mirror_pull(pcoll_mirror *mirror, const pcoll_piece *pieces, int32_t count,
                      uint64_t stream);
/* Begin to copy to it, between what `stream` has been given and what it is given from now on. */
int pcoll_mirror_push(pcoll_mirror *mirror, const pcoll_piece *pieces, int32_t count,
                      uint64_t stream);
/* PCOLL_EAGAIN: copies are in progress after timeout_us. */
int pcoll_mirror_wait(pcoll_mirror *mirror, int64_t timeout_us);
/* Waits for copies. May be NULL: mirror. */
int pcoll_mirror_free(pcoll_mirror **mirror);

/* The address of the next deposit (owned_send), which changes at every start. Local. */
int pcoll_handle_send_slot(pcoll_handle *handle, int32_t buffer, void **address);

/* For a checkpoint: copy to buffers[i] the sum of this rank's deposits that are in no round which
 * it has read, in the application's dtype. PCOLL_EEMPTY: there are none. Call it once before the
 * first start, so that the handle keeps what the sum needs. It also works after a failure.
 * Local. */
int pcoll_handle_pending(pcoll_handle *handle, void *const *buffers);

/* Keep the memory of a handle around this address (send slot or result) when the handle is freed or
 * MPI finalized, until it is released as often as it was held. PCOLL_ENOMEM. Local; any thread. */
int pcoll_memory_hold(const void *address);
void pcoll_memory_release(const void *address);

/* Join: from now on this rank contributes nothing and is not waited for, until all ranks have
 * joined. Wait and deliver then return the rounds one by one; round.joined is 1 in the last. */
int pcoll_handle_join(pcoll_handle *handle);
/* Leave for good: never start, never wait again; only free. Local. */
int pcoll_handle_leave(pcoll_handle *handle);

/* Drive pending communication once (manual progress). Local. */
int pcoll_handle_progress(pcoll_handle *handle);
int pcoll_handle_stats(pcoll_handle *handle, pcoll_stats *stats);
/* The algorithm it uses (enum pcoll_algorithm, never auto). Local. */
int pcoll_handle_algorithm(pcoll_handle *handle, int32_t *algorithm);
/* How its ranks share memory: enum pcoll_domain (never auto), the number of domains, and of the
 * ranks in this rank's. Local. */
int pcoll_handle_domain(pcoll_handle *handle, int32_t *domain, uint32_t *domains,
                        uint32_t *members);
/* The address of buffer `buffer` of the last delivered result in the library's memory, as it was
 * reduced (float16 and bfloat16 as float32): read-only, and valid until the next start.
 * PCOLL_ESTATE: before the first result, or with deliver="all". Local. */
int pcoll_handle_result(pcoll_handle *handle, int32_t buffer, const void **address);
/* Text of the schedule; format is "text" or "dot". Free it with pcoll_text_free. */
int pcoll_handle_schedule(pcoll_handle *handle, const char *format, char **text);
/* The schedule as a block of a GOAL file. A byte that is copied or reduced takes ns_per_byte
 * nanoseconds. Free it with pcoll_text_free. Local. */
int pcoll_handle_goal(pcoll_handle *handle, double ns_per_byte, char **text);
void pcoll_text_free(char *text);
/* Ask every rank, for at most patience_us, and write a sentence about those that the current wait
 * waits for. Local (the others' agents answer). */
int pcoll_handle_missing(pcoll_handle *handle, int64_t patience_us, char *text,
                         uint64_t capacity);

/* Free in two steps, so that a caller can handle signals in between: begin, then free until it no
 * longer returns PCOLL_EAGAIN. Collective. Both are idempotent. May be NULL: handle. */
int pcoll_handle_free_begin(pcoll_handle *handle);
int pcoll_handle_free(pcoll_handle **handle, int64_t timeout_us);

/*
 * A schedule of the user (docs/schedules.md): operations, and which of them precede which.
 *
 * Every rank adds the operations of its part (local), then all commit (collective), then it runs
 * any number of times. Buffers are used in place: they must exist until the schedule is freed, and
 * must not be touched between start and wait. A buffer is `count` elements of `dtype` (shape; its
 * `op` is for reductions). *op becomes the number of the operation; a label is copied.
 */
typedef struct pcoll_schedule pcoll_schedule;

/* Create an empty one on *comm, an MPI_Comm, which must exist until the commit dup's it. Local. */
int pcoll_schedule_create(const void *comm, pcoll_schedule **schedule);

/* Send to a rank, receive from one. Messages from one rank to another with the same tag (0 or
 * more) match in the order in which they were added on either side. MPI_PROC_NULL: nothing is sent
 * or received. PCOLL_EINVAL names the argument; nothing is added then. May be NULL: from (no
 * elements), into (no elements), label. Local. */
int pcoll_schedule_send(pcoll_schedule *schedule, const void *from,
                        const pcoll_buffer *shape, int32_t dest, int32_t tag,
                        const char *label, int32_t *op);
int pcoll_schedule_recv(pcoll_schedule *schedule, void *into, const pcoll_buffer *shape,
                        int32_t source, int32_t tag, const char *label, int32_t *op);
/* into[i] = from[i] op into[i]; from is into, or does not overlap it. May be NULL: from (no
 * elements), into (no elements), label. Local. */
int pcoll_schedule_reduce(pcoll_schedule *schedule, const void *from, void *into,
                          const pcoll_buffer *shape, const char *label, int32_t *op);
int pcoll_schedule_copy(pcoll_schedule *schedule, const void *from, void *into,
                        const pcoll_buffer *shape, const char *label, int32_t *op);
/* Do nothing: other operations can wait for it. May be NULL: label. Local. */
int pcoll_schedule_nop(pcoll_schedule *schedule, const char *label, int32_t *op);
/* Complete `seconds` seconds after its gate has opened. May be NULL: label. Local. */
int pcoll_schedule_timer(pcoll_schedule *schedule, double seconds, const char *label,
                         int32_t *op);
/* Add predecessors of op. Its gate opens when k of all its predecessors are complete; 0: leave k
 * unchanged (all, at first). May be NULL: predecessors (count 0). Local. */
int pcoll_schedule_after(pcoll_schedule *schedule, int32_t op,
                         const int32_t *predecessors, int32_t count, uint32_t k);

/* Check the schedule and compare it with those of the other ranks. progress is an enum
 * pcoll_progress, and may differ between ranks. Collective. After an error, which is one of all
 * ranks, the schedule is unchanged. PCOLL_EINVAL: this rank's part is wrong (a cycle, a gate that
 * cannot open, a race); PCOLL_EMISMATCH: another rank's is, or messages do not match;
 * PCOLL_ETHREAD: MPI's thread level is too low for the agent. */
int pcoll_schedule_commit(pcoll_schedule *schedule, int32_t progress);
/* In place of a commit, for a rank that has failed: the others' commits return PCOLL_EMISMATCH.
 * Collective with their commit. */
int pcoll_schedule_give_up(pcoll_schedule *schedule);

/* Begin a run. PCOLL_ESTATE: the last one was not waited for. Local. */
int pcoll_schedule_start(pcoll_schedule *schedule);
/* Wait until the run is complete on this rank, at most timeout_us microseconds (0: only make
 * progress); PCOLL_EAGAIN: it is not. Does not use a core. Local. */
int pcoll_schedule_wait(pcoll_schedule *schedule, int64_t timeout_us);
/* The number of runs that are complete on this rank. Local. */
int pcoll_schedule_runs(pcoll_schedule *schedule, uint64_t *runs);
/* Write a sentence on what the current run waits for. Local. */
int pcoll_schedule_pending(pcoll_schedule *schedule, char *text, uint64_t capacity);

/* See pcoll_handle_schedule and pcoll_handle_goal; before the commit as well. Local. */
int pcoll_schedule_text(pcoll_schedule *schedule, const char *format, char **text);
int pcoll_schedule_goal(pcoll_schedule *schedule, double ns_per_byte, char **text);

/* Free in two steps, as a handle. Collective once it is committed, else local. A run that this
 * rank has started is completed; one that only others have started is answered with empty
 * messages. May be NULL: schedule. */
int pcoll_schedule_free_begin(pcoll_schedule *schedule);
int pcoll_schedule_free(pcoll_schedule **schedule, int64_t timeout_us);

/* Gossip buffers (docs/gossip.md): one model per rank, averaged in pairs; no rank waits for
 * another. All functions but create and free are one-sided: they access the memory of other ranks
 * and return when that is complete. A peer on another node needs its agent. */
typedef struct pcoll_gossip pcoll_gossip;

typedef struct pcoll_gossip_options {
    uint64_t count; /* elements of the model */
    int32_t dtype;  /* float16, bfloat16, float32 or float64 */
    int32_t bits;   /* of the lattice codec, 2 to 16; 0: none */
    int32_t rotate; /* with the codec: rotate each block first */
    double margin;  /* with the codec: expected distance / last observed distance */
    uint64_t seed;  /* with the codec; ranks make different ones of it */
    uint32_t queue_slots;     /* messages that a rank's queue holds, 1 to 1024 */
    uint32_t max_uncollected; /* deltas that may lie at a rank before it collects */
    uint64_t shape;           /* any number that is the same if the shape is */
    uint64_t topology;        /* the same for the graph */
    int32_t progress;         /* enum pcoll_progress */
    int32_t on_failure;       /* enum pcoll_failure */
} pcoll_gossip_options;

/* No codec, a queue of 4 messages, at most 2 uncollected deltas, the agent, 0 elements of float32.
 * Local. */
void pcoll_gossip_options_init(pcoll_gossip_options *options);

typedef struct pcoll_gossip_stats {
    uint64_t publishes, reads, averages;
    uint64_t skipped;         /* averages: too much was uncollected at the peer */
    uint64_t collected;       /* deltas */
    uint64_t retries, torn;   /* reads that an owner overtook: tried again, given up */
    uint64_t pushed, drained; /* messages */
    uint64_t queue_full;      /* messages that were not sent */
    uint64_t decode_failures; /* messages that did not decode, thrown away */
    uint64_t fallbacks;       /* blocks read again with more bits */
    uint64_t bytes_read, bytes_written; /* of other ranks' memory and one's own queue */
    uint64_t orphaned;                  /* deltas taken over from ranks that died */
} pcoll_gossip_stats;

/* The options, but for margin, seed and progress, must be the same on all ranks. Collective. */
int pcoll_gossip_create(const void *comm, const pcoll_gossip_options *options,
                        pcoll_gossip **gossip);
/* Publish x as this rank's model; *version counts from 1. */
int pcoll_gossip_publish(pcoll_gossip *gossip, const void *x, uint64_t *version);
/* Read the last published model of the peer, in one version. key: this rank's own model, for the
 * codec (NULL: 0); it must not overlap out. PCOLL_EEMPTY: there is none yet. PCOLL_EAGAIN: the
 * peer publishes faster than it can be read. May be NULL: key. */
int pcoll_gossip_read(pcoll_gossip *gossip, uint32_t peer, const void *key, void *out,
                      uint64_t *version);
/* Averages aim at the model that the peer will have when it has collected. Set the part of the
 * uncollected sum, 0 to 1, that its model will take (all, at first; A2CiD2 gives the rest to
 * x~). */
int pcoll_gossip_set_taken(pcoll_gossip *gossip, double part);
/* x -= weight (x - the peer's model, uncollected deltas included), in place; what x lost is given
 * to the peer: publish x before the next average. momentum moves ratio times as far. *averaged is
 * 0, and nothing has changed, if the peer has max_uncollected deltas. May be NULL: momentum. */
int pcoll_gossip_average(pcoll_gossip *gossip, uint32_t peer, void *x, double weight,
                         void *momentum, double ratio, int32_t *averaged);
/* Add to x what others have given; ratio times that to momentum. May be NULL: momentum. */
int pcoll_gossip_collect(pcoll_gossip *gossip, void *x, void *momentum, double ratio,
                         uint64_t *deltas);
/* Copy the uncollected sum: float64 if the model is, else float32. */
int pcoll_gossip_pending(pcoll_gossip *gossip, void *out);
/* Send x to the peer's queue; *pushed is 0 if it is full. With the codec it is sure to decode with
 * this key (NULL: 0); sent becomes what the peer will get. May be NULL: key, sent. */
int pcoll_gossip_push(pcoll_gossip *gossip, uint32_t peer, const void *x,
                      const void *key, void *sent, int32_t *pushed);
/* Take the oldest message of this rank's queue; *taken is 0 if there is none. out must not overlap
 * key. May be NULL: key. */
int pcoll_gossip_drain(pcoll_gossip *gossip, const void *key, void *out,
                       uint32_t *source, int32_t *taken);
/* Read the newest message in the queue of any rank, where it stays. out must not overlap key. May
 * be NULL: key. */
int pcoll_gossip_peek(pcoll_gossip *gossip, uint32_t peer, const void *key, void *out,
                      uint32_t *source, int32_t *found);
/* A board that all ranks share, for pairing: one number for each rank and a counter, all 0 at
 * first. Each access is atomic. */
int pcoll_gossip_board_read(pcoll_gossip *gossip, int64_t *numbers);
int pcoll_gossip_board_swap(pcoll_gossip *gossip, uint32_t rank, int64_t expected,
                            int64_t desired, int64_t *before);
int pcoll_gossip_board_count(pcoll_gossip *gossip, int64_t delta, int64_t *before);
/* Local. */
int pcoll_gossip_get_stats(pcoll_gossip *gossip, pcoll_gossip_stats *stats);
/* See pcoll_handle_failed. Calls about dead ranks return PCOLL_EFAILED. Local; any thread. */
int pcoll_gossip_failed(pcoll_gossip *gossip, uint64_t *set);
/* Bytes of the window of each rank. Local. */
int pcoll_gossip_bytes(pcoll_gossip *gossip, uint64_t *bytes);
/* PCOLL_EAGAIN: not all ranks free it yet; call again. May be NULL: gossip. Collective. */
int pcoll_gossip_free(pcoll_gossip **gossip, int64_t timeout_us);

/*
 * A vector in few bits, for readers that have a similar one, their key (docs/quantization.md). The
 * error depends on the distance between the two, not on their length.
 *
 * A payload describes itself: header, a step and a hash for each block of 1024 elements, and the
 * planes of all blocks, in the byte order of this machine; others refuse it. Payloads need no
 * alignment. All of this is local, and MPI need not be initialized.
 */
typedef struct pcoll_lattice {
    uint64_t count; /* elements */
    uint64_t seed;  /* of dithers and rotation; another one for each message */
    int32_t dtype;  /* float16, bfloat16, float32, float64 (as float32) */
    int32_t bits;   /* of an element, 2 to 16 */
    int32_t high;   /* 1: the other 16 - bits as well, for keys that are too far */
    int32_t rotate; /* 1: each block is rotated first, which spreads outliers */
} pcoll_lattice;

/* 8 bits, one plane, not rotated, 0 elements of float32. */
void pcoll_lattice_init(pcoll_lattice *lattice);
/* Bytes of a payload, and how many blocks it has. PCOLL_EINVAL names the member. */
int pcoll_lattice_size(const pcoll_lattice *lattice, uint64_t *bytes, uint64_t *blocks);
/* distances[b] = max|x - key| over block b in its encoded form (rotated or not); key NULL: 0. Not
 * finite where x or key is not. May be NULL: key, x (no elements), distances (no elements). */
int pcoll_lattice_distances(const pcoll_lattice *lattice, const void *x,
                            const void *key, float *distances);
/* Write a payload of pcoll_lattice_size bytes. Keys up to margin x distances[b] away in block b
 * (max norm, as above) are sure to decode; distances NULL: those from `key`; key NULL as well:
 * from 0. PCOLL_EINVAL: an argument, or an element that is not finite as float32 or too large
 * (about 2^125; rotated, 2^117). May be NULL: key, distances, x (no elements). */
int pcoll_lattice_encode(const pcoll_lattice *lattice, const void *x, const void *key,
                         const float *distances, double margin, void *payload);
/* Check header and table of a payload and describe it. PCOLL_EPROTOCOL: truncated, damaged, or not
 * a payload. May be NULL: payload (bytes 0). */
int pcoll_lattice_look(const void *payload, uint64_t bytes, pcoll_lattice *lattice);
/* Decode any bytes with a key of the payload's count and dtype (NULL: 0). failed[b] becomes 1 if
 * block b does not decode (the key is too far, or the block is damaged), else 0; *failures counts
 * them. out may be key; it is undefined in failed blocks. Errors of pcoll_lattice_look. May be
 * NULL: payload (bytes 0), key. */
int pcoll_lattice_decode(const void *payload, uint64_t bytes, const void *key,
                         void *out, uint8_t *failed, uint64_t *failures);
/* x -= weight (x - what the payload decodes to with key x). A failed block of x stays unchanged.
 * May be NULL: payload (bytes 0). */
int pcoll_lattice_average(const void *payload, uint64_t bytes, double weight, void *x,
                          uint8_t *failed, uint64_t *failures);

/* Grids and shares of grouped averaging (docs/groups.md). A grid has 1 to 16 sides; cells are
 * numbered row by row, the last axis first. All of this is local, and MPI need not be initialized.
 * After PCOLL_EINVAL, which names the argument, and PCOLL_ENOMEM outputs are undefined. */

/* Check that the sides are 1 or more, with fewer than 2^63 cells, and cells for all peers. */
int pcoll_grid_check(const uint32_t *sides, uint32_t axes, uint64_t peers);
/* A good grid for 1 to 2^32 peers; sides has room for 16. */
int pcoll_grid_auto(uint64_t peers, uint32_t *sides, uint32_t *axes);
/* The lines of the cells along an axis: a number below cells / side for each line. May be NULL:
 * cells (count 0), lines (count 0). */
int pcoll_grid_lines(const uint32_t *sides, uint32_t axes, uint32_t axis,
                     const uint64_t *cells, uint64_t count, uint64_t *lines);
/* Their coordinates on the axis. May be NULL: cells (count 0), coordinates (count 0). */
int pcoll_grid_coordinates(const uint32_t *sides, uint32_t axes, uint32_t axis,
                           const uint64_t *cells, uint64_t count,
                           uint32_t *coordinates);
/* The cells with their coordinates on the axis replaced by chunks; moved may be cells. May be
 * NULL: cells (count 0), chunks (count 0), moved (count 0). */
int pcoll_grid_move(const uint32_t *sides, uint32_t axes, uint32_t axis,
                    const uint64_t *cells, const uint32_t *chunks, uint64_t count,
                    uint64_t *moved);
/* The coordinates that members get after the round with dynamic keys, which differ within a group;
 * each has a line of the round's axis, a position in its group, and the size of the group. May be
 * NULL: lines (count 0), positions (count 0), sizes (count 0), chunks (count 0). */
int pcoll_grid_chunks(const uint32_t *sides, uint32_t axes, uint64_t peers,
                      uint64_t round, const uint64_t *lines, const uint32_t *positions,
                      const uint32_t *sizes, uint64_t count, uint32_t *chunks);
/* The part of a vector that each member of a group should reduce, by their bandwidths in any unit,
 * so that the slowest ends as early as possible. */
int pcoll_group_shares(const double *bandwidths, uint32_t members, double *shares);
/* The bounds of the parts of count elements: members + 1 of them, multiples of grain (0: 1) but
 * for the last, count. A share of 0 has no element. */
int pcoll_group_bounds(const double *shares, uint32_t members, uint64_t count,
                       uint64_t grain, uint64_t *bounds);

/* Grouped averaging (docs/groups.md): ranks on a virtual grid; round t averages along axis t mod
 * axes, among the ranks of one line that take part. If a member is silent for longer than the
 * timeout, the round is void for its group: all its members keep their inputs. */
typedef struct pcoll_group pcoll_group;

/* Cells stay (static) or move, so that members do not meet again soon (dynamic). AUTO: static if
 * the ranks fill the grid. */
enum pcoll_keys { PCOLL_KEYS_AUTO, PCOLL_KEYS_STATIC, PCOLL_KEYS_DYNAMIC };

typedef struct pcoll_group_options {
    uint64_t count; /* elements */
    int32_t dtype;  /* float16, bfloat16, float32 or float64 */
    int32_t keys;   /* enum pcoll_keys */
    uint32_t axes;  /* of the grid; 0: one is chosen */
    uint32_t side[16];
    int64_t cell;       /* of this rank; -1: its number */
    double bandwidth;   /* of this rank, in any unit; 0: all are equal. See measure */
    int32_t measure;    /* 1: bandwidths are measured, in bytes per second */
    uint32_t every;     /* rounds after which a measured bandwidth is taken over */
    int64_t timeout_us; /* how long a member may be silent in mid-round; up to 10^9 s */
    int64_t window_us;  /* how long to wait for more members; 0: by the timeout */
    int32_t progress;   /* enum pcoll_progress */
    int32_t on_failure; /* enum pcoll_failure */
} pcoll_group_options;

/* A grid that fits the ranks, each in the cell of its number, equal bandwidths, a timeout of 10 s,
 * the agent, 0 elements of float32. Local. */
void pcoll_group_options_init(pcoll_group_options *options);

typedef struct pcoll_group_round {
    uint64_t index;    /* of the round */
    uint64_t missed;   /* rounds before it, since the last one of this rank */
    uint32_t axis;     /* it was along this one */
    uint32_t members;  /* of the group; 0: void */
    uint32_t position; /* of this rank among them */
    uint32_t active;   /* how many of them contributed */
    int32_t exact;     /* the last rounds, one per axis, were complete */
    int32_t is_void;
} pcoll_group_round;

typedef struct pcoll_group_stats {
    uint64_t rounds, void_rounds; /* with a contribution of this rank */
    uint64_t null_rounds;         /* without one */
    uint64_t matched_ahead;       /* the group was known before pcoll_group_start */
    uint64_t suspected;           /* ranks that this one has found to be silent */
    uint64_t bytes_fetched;       /* from other ranks' memory */
    double bandwidth;             /* measured; 0: not yet */
} pcoll_group_stats;

/* The grid, the keys and the times that are used. */
typedef struct pcoll_group_shape {
    uint32_t axes, side[16];
    int32_t keys;
    int64_t timeout_us, window_us;
    uint64_t bytes; /* of the window, and of the rank's own memory */
} pcoll_group_shape;

/* The options, but for cell, bandwidth (which all ranks give, or none) and progress, must be the
 * same on all ranks, and the cells must differ. Collective. */
int pcoll_group_create(const void *comm, const pcoll_group_options *options,
                       pcoll_group **group);
/* Contribute; `send` may be used again at once. PCOLL_ESTATE: the last contribution was not waited
 * for, or this rank has left. Local. */
int pcoll_group_start(pcoll_group *group, const void *send);
/* Wait until the round of the contribution is complete. `receive` becomes the average of the
 * contributions, or this rank's own if the round is void. PCOLL_EAGAIN: not complete yet. */
int pcoll_group_wait(pcoll_group *group, int64_t timeout_us, void *receive,
                     pcoll_group_round *round);
/* Ranks and shares of the last round waited for; room for all ranks. Local. */
int pcoll_group_members(pcoll_group *group, uint32_t *ranks, double *shares);
/* Take part no longer, from the next round that this rank has not started. Local. */
int pcoll_group_leave(pcoll_group *group);
/* Take part again, in the current round of the others. Local. */
int pcoll_group_rejoin(pcoll_group *group);
/* This rank's round, whether it has left (or will), and of each rank: 0 takes part, 1 has left, 2
 * suspected, 3 dead. Local. */
int pcoll_group_look(pcoll_group *group, uint64_t *round, int32_t *away,
                     uint8_t *statuses);
/* Set this rank's bandwidth from the next matchmaking on. Local. */
int pcoll_group_set_bandwidth(pcoll_group *group, double bandwidth);
/* Write a sentence on what the round waits for. Local. */
int pcoll_group_pending(pcoll_group *group, char *text, uint64_t capacity);
/* Local. */
int pcoll_group_get_stats(pcoll_group *group, pcoll_group_stats *stats);
int pcoll_group_get_shape(pcoll_group *group, pcoll_group_shape *shape);
/* Leaves first. PCOLL_EAGAIN: not all ranks free it yet; call again. May be NULL: group.
 * Collective. */
int pcoll_group_free(pcoll_group **group, int64_t timeout_us);

/* cffi:end */

/* Shaped like MPI, declared if mpi.h is included before this header. They call the communicator's
 * error handler and return MPI's error codes; pcoll_last_error() has the details. */
#ifdef MPI_VERSION

/*
 * MPI_Allreduce, completed by a quorum (docs/c.md, docs/interposer.md): that of the communicator
 * (PCOLL_Comm_set_quorum), else PARTIALCOLL_QUORUM, else "full". Collective; blocks until the
 * round that this call stands for is complete (the t-th call from one place in the program: round
 * t). A place is where the call is in the compiled program, so two sums in one loop do not mix.
 *
 * sendbuf   count elements, or MPI_IN_PLACE; may be reused when the call returns.
 * recvbuf   count elements, apart from sendbuf; becomes the sum of the round.
 * type, op  a predefined pair that MPI allows; with "full" also a commutative op of the user, on a
 *           datatype without gaps. They are used during the call only, on this thread or on another
 *           one that waits here meanwhile.
 * comm      an intra-communicator.
 *
 * May be NULL: sendbuf (count 0), recvbuf (count 0).
 *
 * Threads: as MPI_Allreduce. A quorum other than full needs MPI_THREAD_MULTIPLE, or
 * PARTIALCOLL_PROGRESS=manual, unless all ranks are on one node. Errors: MPI_ERR_COMM,
 * MPI_ERR_COUNT, MPI_ERR_TYPE, MPI_ERR_OP, MPI_ERR_BUFFER for the argument of that name;
 * MPI_ERR_ARG for an invalid setting, and for an op of the user with a quorum; MPI_ERR_NO_MEM;
 * MPI_ERR_OTHER if the arguments differ (on every rank) or the thread level is too low; those of
 * MPI.
 */
int PCOLL_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type,
                    MPI_Op op, MPI_Comm comm);

/* Set the quorum of PCOLL_Allreduce on this communicator: a text of pcoll_policy_parse, perhaps
 * with "history=" and "deliver=" (docs/interposer.md); NULL or "": that of the environment, which
 * is read again. Local, but all ranks must give the same before their next PCOLL_Allreduce.
 * Duplicates do not inherit it. May be NULL: quorum. Errors: MPI_ERR_ARG (no policy),
 * MPI_ERR_COMM, MPI_ERR_NO_MEM. */
int PCOLL_Comm_set_quorum(MPI_Comm comm, const char *quorum);

#endif

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
