/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partialcoll: collectives for ranks that do not arrive together.
 *
 * The whole C interface. Conventions:
 *   - every function returns PCOLL_OK or a negative PCOLL_E code; the message for the
 *     last failure on this thread is pcoll_last_error();
 *   - the object comes first, answers leave through pointers at the end;
 *   - create/free come in pairs, and free takes the address and stores NULL;
 *   - a pointer may be NULL only if the text of the function has it after "May be NULL:",
 *     with the condition in parentheses if there is one. Other functions return
 *     PCOLL_EINVAL, and the message names the argument; those that return nothing do
 *     nothing;
 *   - options begin with the init function of their struct, which gives each member its
 *     default, Python's, and cannot fail; a struct of zeros is not that. The environment
 *     is not asked;
 *   - "Collective" means: every rank of the communicator calls it, in the same order
 *     as its other collectives. "Local" never communicates with the caller blocked.
 *   - a handle is used by one thread at a time; a second one gets PCOLL_ESTATE.
 *     Different handles may be used by different threads.
 *
 * The text between the two markers is also what the Python layer is generated from,
 * so it holds nothing but plain declarations.
 */
#ifndef PARTIALCOLL_H
#define PARTIALCOLL_H

#include <stdint.h>

#define PCOLL_API __attribute__((visibility("default")))

/* The version of this header, in one number as well; pcoll_version() has the library's.
 */
#define PCOLL_VERSION_MAJOR 0
#define PCOLL_VERSION_MINOR 1
#define PCOLL_VERSION_PATCH 0
#define PCOLL_VERSION                                                                  \
    (10000 * PCOLL_VERSION_MAJOR + 100 * PCOLL_VERSION_MINOR + PCOLL_VERSION_PATCH)
/* Does a library of this version run programs compiled with this header? One of the same
 * major version (while that is 0: of the same minor one) that is not older. */
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
    PCOLL_EAGAIN = -1,    /* not yet: call again (a wait that has to let signals in) */
    PCOLL_EEMPTY = -2,    /* nothing to deliver */
    PCOLL_EINVAL = -3,    /* bad argument */
    PCOLL_ESTATE = -4,    /* right call, wrong moment (freed, not started, in use …) */
    PCOLL_EMISMATCH = -5, /* the ranks disagree about an argument, or what they call */
    PCOLL_ENOMEM = -6,
    PCOLL_EMPI = -7,      /* MPI failed: pcoll_last_mpi_error() has its code */
    PCOLL_EPROTOCOL = -8, /* a message that cannot be: a bug, or a corrupted message */
    PCOLL_ETHREAD = -9,   /* MPI's thread level is too low for what was asked */
    PCOLL_EFAILED = -10   /* ranks have died: pcoll_failed_ranks() has them */
};

/* float16 and bfloat16 are accumulated in float32 and rounded once, in the result. bool
 * is one byte, 0 or 1. */
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

/* As in MPI: floats take SUM to MAX, complex numbers SUM and PROD, integers all, bool
 * the three logical ones. Integers wrap around. MIN and MAX keep the left operand
 * unless the right one is smaller (larger), so a NaN on the left stays and one on the
 * right is passed over. */
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

/* What becomes of a deposit that misses its round. */
enum pcoll_late { PCOLL_LATE_CARRY, PCOLL_LATE_LATEST, PCOLL_LATE_DROP };

/* Who moves the messages while the application computes. */
enum pcoll_progress {
    PCOLL_PROGRESS_AGENT,
    PCOLL_PROGRESS_MANUAL,
    PCOLL_PROGRESS_SPIN
};

/* Which ranks reduce in shared memory, so that only one of them talks to others. */
enum pcoll_domain {
    PCOLL_DOMAIN_NODE, /* those of a node; an error where its memory cannot be had */
    PCOLL_DOMAIN_RANK, /* every rank is a domain of its own: messages only */
    PCOLL_DOMAIN_AUTO  /* as NODE, but as RANK where the memory cannot be had */
};

/* What becomes of a handle when a rank dies (docs/faults.md). */
enum pcoll_failure {
    PCOLL_FAILURE_RAISE,   /* calls return PCOLL_EFAILED */
    PCOLL_FAILURE_CONTINUE /* the others go on without it; needs an MPI that can */
};

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
 * With PCOLL_MPI_TYPE or PCOLL_MPI_OP (one of them or both) it is reduced by
 * MPI_Reduce_local: any commutative op, any predefined datatype, and derived ones
 * without gaps (lower bound 0, extent = size; only with ops of their user, as in MPI).
 * Both are read when the handle is made. A derived datatype is dup'ed and may be freed;
 * the op must live as long as the handle. Such a reduction has no identity: a round to
 * which nobody contributed (pcoll_round.active is 0) leaves the receive buffer as it
 * is. Two ranks that give different ops of their own cannot be told apart.
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
    int32_t
        device; /* number + 1: buffers of this rank are on a device (owned_send); 0 */
    int32_t on_failure; /* enum pcoll_failure */
    int32_t described;  /* 1: pcoll_handle_describe gives each call its form */
} pcoll_options;

/* Each its default: full, PCOLL_DELIVER_ONE, PCOLL_LATE_CARRY (which is for PCOLL_SUM
 * only), the agent, ranks of a node in one domain, 8 results. Local. */
void pcoll_options_init(pcoll_options *options);

/* What one delivered round was. */
typedef struct pcoll_round {
    uint64_t index;
    uint64_t lag;      /* complete rounds that this rank has not been given yet */
    uint64_t lost;     /* rounds skipped just before this one, older than the history */
    uint32_t active;   /* ranks that contributed fresh data */
    uint32_t stored;   /* of them, with a deposit from before the round only */
    int32_t initiator; /* lowest rank whose own arrival started the round; -1: none */
    int32_t
        included; /* 1: this rank's last deposit is in this round or an earlier one */
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
    uint64_t stored;    /* deposits that came when their round was under way or over */
    uint64_t dropped;   /* deposits forgotten (late="drop") */
    uint64_t included;  /* rounds this rank contributed fresh data to */
    uint64_t activations_dropped; /* duplicate or late activations, harmless */
    uint64_t activations_early;   /* activations of the next round that were kept */
    uint64_t redone; /* rounds begun once more since a rank had died in them */
} pcoll_stats;

typedef struct pcoll_handle pcoll_handle;

/* PCOLL_VERSION of the library. Local. */
int pcoll_version(void);
/* The last failure's message on this thread. Never NULL. Local. */
const char *pcoll_last_error(void);
/* For wrappers that check arguments themselves: why those that this thread gives next are
 * not valid, in place of a failure's message, so that the other ranks are told. Local. */
void pcoll_refuse(const char *why);
/* MPI's error code of the last PCOLL_EMPI or PCOLL_EFAILED on this thread; MPI_SUCCESS: no
 * call has failed, but this MPI cannot do what was asked for. Local. */
int pcoll_last_mpi_error(void);
/* The ranks, of the communicator that it was about, that the last PCOLL_EFAILED on this
 * thread is due to, as far as MPI knew of them then; 64 at most. How many: no more than
 * `capacity` are written. May be NULL: ranks. Local. */
int pcoll_failed_ranks(int32_t *ranks, int capacity);
/* 1: when a rank of this job dies, calls on the others return PCOLL_EFAILED; 0: the job
 * ends with it, as MPI's launcher sees to. Local. */
int pcoll_tells_of_failures(void);
/* For wrappers that make several things on a communicator: one of the ranks of `comm` that
 * live (an MPI_Comm, to be freed by the caller) to `living`; and whether all have got as far
 * on it, `rc` being 0 on those who have: 0 on all, or an error on each. Where the job goes
 * on when a rank dies. Collective. */
int pcoll_shrink(const void *comm, void *living);
int pcoll_all_have(const void *comm, int rc);
/* "mpich" or "openmpi": what the core was compiled with; size of an MPI_Comm. Local. */
const char *pcoll_built_with(void);
uint64_t pcoll_sizeof_comm(void);
/* MPI_Get_library_version of the MPI this core calls (legal before MPI_Init). Local. */
int pcoll_library_version(char *text, int capacity);

/* Parse a policy: "solo", "majority", "quorum:6", "quorum:0.75", "first_of:2",
 * "last_of:3", "full", each with any of ",linger=50us,deadline=2s,max_staleness=8".
 * PCOLL_EINVAL with a message otherwise; *policy is then as it was. Local. */
int pcoll_policy_parse(const char *text, pcoll_policy *policy);
/* Write the canonical text of a policy. Local. */
int pcoll_policy_format(const pcoll_policy *policy, char *text, uint64_t capacity);

/* Parse the name of an algorithm: "auto", "recdbl", "rabenseifner", "ring" or "native".
 * PCOLL_EINVAL with a message otherwise; *algorithm is then as it was. Local. */
int pcoll_algorithm_parse(const char *text, int32_t *algorithm);
/* The file that PCOLL_ALGORITHM_AUTO reads, if it is there, or "none":
 * $PARTIALCOLL_TUNE, else partialcoll/tune.txt in the user's configuration. Local. */
int pcoll_tuning_path(char *path, uint64_t capacity);

/*
 * Who does a complete round of a call that looks like MPI_Allreduce: MPI, or we
 * (docs/interposer.md)? All ranks must find the same answer without a message in each call:
 *
 *   pcoll_full_look     each rank fills in what it knows
 *                       the ranks combine `words` with MPI_BOR
 *   pcoll_full_settle   each rank knows the facts, which are the same on all
 *   pcoll_full_pays     each call decides by the facts and by the calls before it
 *
 * A handle costs milliseconds. So calls are MPI's until the time that our rounds would have
 * saved adds up to that: at worst twice the time of the better choice (ski rental).
 */
enum { PCOLL_FULL_WORDS = 20, PCOLL_FULL_LINES = 16 };
typedef struct pcoll_full_facts {
    uint64_t words[20];
    int32_t open_mpi, one_node;
    int32_t crowded; /* more ranks than cores */
    int32_t
        tables_differ; /* the ranks read different tables: the built-in one is used */
    uint32_t lines;    /* of the table; 0: the built-in one */
    uint64_t line_ranks[16], line_bytes[16];
} pcoll_full_facts;

/* open_mpi: the MPI is Open MPI. PCOLL_EINVAL says what is wrong with the table of
 * `bench tune`, which then counts as empty. Local. */
int pcoll_full_look(int32_t open_mpi, pcoll_full_facts *facts);
/* `ranks` have combined their words. Local. */
void pcoll_full_settle(pcoll_full_facts *facts, uint32_t ranks);
/* The shortest payload for which our rounds are faster on so many ranks, in bytes;
 * UINT64_MAX: none. Local. */
uint64_t pcoll_full_from(const pcoll_full_facts *facts, uint32_t ranks);
/* One more call: 1: it is ours; 0: MPI's. *saved, 0 at first, counts for the calls of one
 * signature; has_handles: the communicator has handles already. Local. */
int pcoll_full_pays(const pcoll_full_facts *facts, uint32_t ranks, uint64_t bytes,
                    int32_t has_handles, uint64_t *saved);

/* End the agent thread of this process; from now on whoever waits makes progress. To be
 * called just before MPI_Finalize, in which some MPIs fail if another thread is inside
 * MPI when it begins. Where jobs go on when a rank dies, it also lets Open MPI's
 * MPI_Finalize return after a death. The libraries' MPI_Finalize and the Python package
 * call it. Local.
 */
int pcoll_quiet(void);
/* Let this process end with status 1 instead of 0 if a record of arrivals
 * (PARTIALCOLL_RECORD) could not be written. Call it when the program has nothing left to
 * do but MPI_Finalize and exit: launchers kill the other ranks when one ends with an
 * error. The Python package does so. Local. */
int pcoll_record_status(void);
/* PCOLL_OK if the op is defined for the dtype, else PCOLL_EINVAL with a message that
 * says which are. Local. */
int pcoll_op_check(int32_t op, int32_t dtype);

/* Parse "node", "rank", "auto", the first and last with ":K" for at most K ranks in a
 * domain. PCOLL_EINVAL with a message otherwise; nothing is changed then. Local. */
int pcoll_domain_parse(const char *text, int32_t *domain, uint32_t *domain_ranks);
/* Bytes that a handle on `ranks` ranks of one node, or of domain="rank", will hold. Local. */
int pcoll_memory_estimate(uint32_t ranks, const pcoll_buffer *buffers, int32_t nbuffers,
                          const pcoll_options *options, uint64_t *bytes);

/*
 * Create a persistent allreduce on *comm (the address of an MPI_Comm; it is dup'ed once
 * and may be freed before the handle). Collective. Arguments that differ between ranks
 * give PCOLL_EMISMATCH on every rank; no rank is left waiting, but by on_failure, which
 * is not compared (so in all functions below).
 */
int pcoll_allreduce_create(const void *comm, const pcoll_buffer *buffers,
                           int32_t nbuffers, const pcoll_options *options,
                           pcoll_handle **handle);

/*
 * Take others in for ranks that have died, or be one of them. Collective over *comm, an MPI_Comm
 * of all ranks of the handle that live and of those who take the numbers of dead ones: its rank i
 * has number numbers[i], the same on all; newcomers join, with the same arguments and
 * PCOLL_FAILURE_CONTINUE, the others grow, between two rounds. The handle is then on a duplicate
 * of that communicator; `ranks` stays what it was. A newcomer is given the last round first.
 * `can_grow` says what would be refused, locally; who cannot take part refuses instead. Any error
 * comes on all ranks and leaves the handle as it was; PCOLL_EFAILED when somebody has died
 * meanwhile, or another rank has refused.
 */
int pcoll_growth_refuse(const void *comm);
/* Have all ranks of *comm, an MPI_Comm, lived until now? Collective; the same on all: PCOLL_OK,
 * also where MPI does not tell, or PCOLL_EFAILED. */
int pcoll_growth_check(const void *comm);
/* Open MPI's agreements break when threads meet in them: keep the library's out of MPI, between
 * the two calls, both by the thread that is in it; hold them up altogether where that takes
 * longer (to spawn processes). Local. */
void pcoll_mpi_enter(int32_t hold);
void pcoll_mpi_leave(int32_t hold);
int pcoll_handle_can_grow(pcoll_handle *handle);
int pcoll_handle_grow(pcoll_handle *handle, const void *comm, const uint32_t *numbers,
                      const pcoll_buffer *buffers, int32_t nbuffers,
                      const pcoll_options *options);
int pcoll_allreduce_join(const void *comm, const uint32_t *numbers, uint32_t ranks,
                         const pcoll_buffer *buffers, int32_t nbuffers,
                         const pcoll_options *options, pcoll_handle **handle);

/*
 * Deposit this rank's contribution for the round that this call stands for, and trigger
 * the round if the policy allows. send[i] is buffer i, copied before the call returns; it
 * may be NULL if the buffer has no elements. May be NULL: send (owned_send). Local. PCOLL_ESTATE when the last start was not waited for;
 * PCOLL_EAGAIN in a replay of recorded arrivals, while it is not this rank's turn.
 */
int pcoll_handle_start(pcoll_handle *handle, const void *const *send);

/*
 * Wait until the round of the last start is complete, at most timeout_us microseconds
 * (0: only look, and make progress). PCOLL_EAGAIN when it is not; it can be waited for
 * again. Local: nobody else has to call it. Never burns a core. PCOLL_ESTATE if nothing
 * is started, PCOLL_EMPI, PCOLL_EPROTOCOL; the handle can then only be freed.
 */
int pcoll_handle_wait(pcoll_handle *handle, int64_t timeout_us);

/*
 * Wait until the round of any of several started handles is complete. *index is the
 * first such handle. All must have been made in this process, NULL entries are passed
 * over.
 */
int pcoll_wait_any(pcoll_handle *const *handles, int32_t count, int64_t timeout_us,
                   int32_t *index);

/*
 * After a successful wait: copy the oldest undelivered round with index <= last into
 * recv[i] and describe it. masks has room for 3 x ranks/64 (rounded up) words: who
 * contributed, who of them from storage only, and who had died. PCOLL_EEMPTY if none. Local.
 * recv[i] has room for buffer i and belongs to the caller again on return; it may be NULL
 * if the buffer has no elements. With recv NULL nothing is copied. May be NULL: recv, masks.
 */
int pcoll_handle_deliver(pcoll_handle *handle, uint64_t last, void *const *recv,
                         pcoll_round *round, uint64_t *masks);
/*
 * Wait, deliver one round and finish, in one call: what a loop with deliver="one" does
 * in each step. PCOLL_EAGAIN after timeout_us; nothing has been delivered then. May be
 * NULL: recv, masks. Local.
 */
int pcoll_handle_take(pcoll_handle *handle, int64_t timeout_us, void *const *recv,
                      pcoll_round *round, uint64_t *masks);
/*
 * Start and take so many rounds of a handle with deliver="one", back to back, and say
 * how long one took on average, in microseconds: what a binding's own loop over the
 * same two calls is to be compared with. The last of the rounds is described as
 * pcoll_handle_take does. Errors are those of the two calls. May be NULL: send
 * (owned_send), recv, masks. Local, in the sense that they are.
 */
int pcoll_handle_measure(pcoll_handle *handle, const void *const *send,
                         void *const *recv, uint64_t rounds, double *microseconds,
                         pcoll_round *round, uint64_t *masks);
/* Number of rounds complete on this rank, and of rounds delivered. Local. */
int pcoll_handle_rounds(pcoll_handle *handle, uint64_t *complete, uint64_t *delivered);
/* End of the call: the handle may be started again. Local. */
int pcoll_handle_finish(pcoll_handle *handle);
/* The ranks that have died, with PCOLL_FAILURE_CONTINUE: a set in ranks/64 (rounded up)
 * words. Local. */
int pcoll_handle_failed(pcoll_handle *handle, uint64_t *set);
/* How often the others have gone on after a death, and of the last time when this rank heard
 * of it and when it went on (nanoseconds of CLOCK_MONOTONIC; 0: never). Local. */
int pcoll_handle_outages(pcoll_handle *handle, uint32_t *count, int64_t *began,
                         int64_t *ended);
/* A communicator of those who are left, in the order of their ranks, for the caller's own
 * traffic: the library's, until the next death, which revokes it. *comm is an MPI_Comm;
 * PCOLL_EEMPTY while nobody has died. Local. */
int pcoll_handle_comm(pcoll_handle *handle, void *comm);

/*
 * Reduce buffer `buffer` with another op from the next start on: for callers whose ops
 * come and go with each call. mpi_type and mpi_op are the addresses of an MPI_Datatype
 * and of an MPI_Op, with the rules of pcoll_buffer; neither is kept, so both must live
 * until the end of the last round before they are set again. The same reduction on all
 * ranks, which nobody compares. PCOLL_EINVAL: not such a pair, or elements of other
 * size; PCOLL_ESTATE: a round is under way, the handle's rounds do not wait for all
 * ranks (full, no deadline), or it was not made with PCOLL_MPI_TYPE or PCOLL_MPI_OP.
 * Whoever waits in this process at that time may run an op, but only one at a time, and
 * only while this rank is between start and the end of its wait. Local.
 */
int pcoll_handle_set_reduction(pcoll_handle *handle, int32_t buffer,
                               const void *mpi_type, const void *mpi_op);

/*
 * From the next start on, say what this rank calls: any number, such as the hash of a text;
 * 0: nothing. Ranks whose numbers differ in a round all get PCOLL_EMISMATCH from the call that
 * would have delivered it, and receive no data; the round counts as delivered, and the next call
 * works. (The core compares 32 bits of the number's hash; a rank without a number agrees with all.)
 *
 * form, if it is not NULL: the count, dtype and op of the next calls of a handle that was made with
 * options.described, whose one buffer has room for it. (float16 and bfloat16 take the room of
 * float32.) The form is part of what is compared, also with number 0. Such a handle is full, has no
 * deadline, delivers "one" and reduces by recursive doubling; no rank can join or leave it.
 *
 * PCOLL_ESTATE: a round is under way, or the handle's rounds do not wait for all ranks (full, no
 * deadline). PCOLL_EINVAL: the form. May be NULL: form. Local.
 */
int pcoll_handle_describe(pcoll_handle *handle, const pcoll_buffer *form,
                          uint64_t intent);

/* Where a buffer of a handle with options.device lies: on that device, or on the host. */
typedef struct pcoll_place {
    uint64_t address;
    int32_t on_host;
} pcoll_place;

/* With options.device: in place of pcoll_handle_start, where the buffers are. Those on the
 * device are copied after what `stream` (a CUstream; 0: the default one) has been
 * given so far, and may be changed by what comes after the end of the copy; this rank
 * arrives then, and the call returns at once. PCOLL_EINVAL: memory that is not this
 * device's, or a stream that is not or records a graph; PCOLL_ESTATE. Local. */
int pcoll_handle_start_device(pcoll_handle *handle, const pcoll_place *send,
                              uint64_t stream);
/* After pcoll_handle_take with recv NULL: copy the result to these buffers, those on the
 * device after what `stream` has been given so far; what it is given from now on comes
 * after that. Returns at once. The next deposit waits for the copy; before anything else
 * that lets the result go (pcoll_handle_deliver, leave, free) see pcoll_handle_arrive.
 * PCOLL_EAGAIN: the last result is still being copied. Local. */
int pcoll_handle_fetch_device(pcoll_handle *handle, const pcoll_place *recv,
                              uint64_t stream);
/* Wait until the deposit of the last pcoll_handle_start_device has been made. PCOLL_EAGAIN
 * after timeout_us; and, at once, while a result is being copied to the device. Local. */
int pcoll_handle_arrive(pcoll_handle *handle, int64_t timeout_us);

/* On which device an address lies; -1: on none. PCOLL_ESTATE: this process has no CUDA
 * driver, with a sentence about what was looked for. Local. */
int pcoll_device_of(uint64_t address, int32_t *device);
/* CUDA devices, and the CUDA that their driver is for, as 1000 times the version. PCOLL_ESTATE
 * as above. Local. */
int pcoll_device_count(int32_t *devices, int32_t *driver);
/* Has this process loaded a CUDA driver, which can be used? Cheap; loads none. Local. */
int pcoll_device_in_use(void);
/* The allocation that an address of a device lies in. PCOLL_EINVAL: none. Local. */
int pcoll_device_allocation(uint64_t address, uint64_t *begin, uint64_t *bytes);

/*
 * A mirror: pinned memory of the host that stands for memory of one device, for what works
 * on the host alone. Pull, work on it, push. One thread at a time. From a pull or a push
 * until pcoll_mirror_wait has said PCOLL_OK the host's side of the pieces is the copies'.
 * All local.
 */
typedef struct pcoll_mirror pcoll_mirror;

/* `bytes` at `host`, which is in pinned memory, and at `device`. */
typedef struct pcoll_piece {
    void *host;
    uint64_t device;
    uint64_t bytes;
} pcoll_piece;

/* PCOLL_ESTATE: no CUDA driver; PCOLL_EINVAL: no such device; PCOLL_ENOMEM. */
int pcoll_mirror_create(int32_t device, pcoll_mirror **mirror);
/* Whole pages of the host's, none twice; they stay until the mirror is freed. */
int pcoll_mirror_pin(pcoll_mirror *mirror, void *memory, uint64_t bytes);
/* Begin to copy from the device, after what `stream` has been given so far. PCOLL_ESTATE:
 * the last copies are not over; PCOLL_EINVAL as in pcoll_handle_start_device. */
int pcoll_mirror_pull(pcoll_mirror *mirror, const pcoll_piece *pieces, int32_t count,
                      uint64_t stream);
/* Begin to copy to it, after what `stream` has been given; what it is given from now on
 * comes after that. */
int pcoll_mirror_push(pcoll_mirror *mirror, const pcoll_piece *pieces, int32_t count,
                      uint64_t stream);
/* PCOLL_EAGAIN: a copy is still under way after timeout_us. */
int pcoll_mirror_wait(pcoll_mirror *mirror, int64_t timeout_us);
/* Waits for copies; the memory that was pinned has to be there. May be NULL: mirror. */
int pcoll_mirror_free(pcoll_mirror **mirror);

/* Where to write the next deposit (owned_send); the address changes at every start, and
 * what is written there after it belongs to the next one. Local. */
int pcoll_handle_send_slot(pcoll_handle *handle, int32_t buffer, void **address);

/* For a checkpoint: copy to buffers[i] the sum of this rank's deposits that no round which
 * it has read contains, in the form in which they were given. PCOLL_EEMPTY: there are none.
 * Call it once before the first start: from then on the handle keeps what it needs for the
 * sum. Between calls it takes part in no round, and it also works after a failure. Local. */
int pcoll_handle_pending(pcoll_handle *handle, void *const *buffers);

/* The memory of a handle around this address, which it gave out (send slot or result),
 * stays when the handle is freed or MPI finalized, until it is released as often as it
 * was held. PCOLL_ENOMEM. Local; by any thread. */
int pcoll_memory_hold(const void *address);
void pcoll_memory_release(const void *address);

/*
 * Join: from now on this rank contributes nothing and is not waited for. Collective in
 * the sense that it is over when all ranks have joined. After it, wait and deliver give
 * the rounds one by one; the one whose round.joined is 1 is the last.
 */
int pcoll_handle_join(pcoll_handle *handle);
/* Leave for good: never start, never wait again; only free. Local. */
int pcoll_handle_leave(pcoll_handle *handle);

/* Drive pending communication once (manual progress). Local. */
int pcoll_handle_progress(pcoll_handle *handle);
int pcoll_handle_stats(pcoll_handle *handle, pcoll_stats *stats);
/* The algorithm it uses (enum pcoll_algorithm, never auto). Local. */
int pcoll_handle_algorithm(pcoll_handle *handle, int32_t *algorithm);
/* How its ranks share memory: enum pcoll_domain (never auto; RANK where no two ranks
 * do), the number of domains, and of the ranks in this one's. Local. */
int pcoll_handle_domain(pcoll_handle *handle, int32_t *domain, uint32_t *domains,
                        uint32_t *members);
/* Where buffer `buffer` of the last delivered result lies in the library's memory, in
 * the form in which it was reduced (float16 and bfloat16 as float32). With
 * deliver="one" it stays as it is until the next start; nothing may be written there.
 * PCOLL_ESTATE before the first result, or with deliver="all". Local. */
int pcoll_handle_result(pcoll_handle *handle, int32_t buffer, const void **address);
/* Text of the schedule; format is "text" or "dot". Free it with pcoll_text_free. */
int pcoll_handle_schedule(pcoll_handle *handle, const char *format, char **text);
/* The schedule as a block of a GOAL file. A byte that is copied or reduced takes
 * ns_per_byte nanoseconds. Free it with pcoll_text_free. Local. */
int pcoll_handle_goal(pcoll_handle *handle, double ns_per_byte, char **text);
void pcoll_text_free(char *text);
/*
 * Say who the current wait is waiting for: asks every rank, at most patience_us, and
 * writes one sentence. Local (the others' agents answer).
 */
int pcoll_handle_missing(pcoll_handle *handle, int64_t patience_us, char *text,
                         uint64_t capacity);

/*
 * Free in two steps, so that a caller can look after signals in between: begin, then
 * free until it no longer returns PCOLL_EAGAIN. Collective. Both are idempotent. May be
 * NULL: handle.
 */
int pcoll_handle_free_begin(pcoll_handle *handle);
int pcoll_handle_free(pcoll_handle **handle, int64_t timeout_us);

/*
 * A schedule of one's own: operations, what comes before what, and runs of it.
 *
 * Every rank writes its part down (local), then all commit (collective), then it runs
 * as often as wanted. Buffers are used in place: they must stay where they are until
 * the schedule is freed, and between start and wait they belong to it. A buffer is
 * `count` elements of `dtype` (shape; its `op` counts for reductions only); the number
 * of an operation comes back in *op; a label is copied, and NULL stands for none. One
 * thread at a time on a schedule, any thread.
 */
typedef struct pcoll_schedule pcoll_schedule;

/* An empty one on *comm: the address of an MPI_Comm, which must stay until the commit,
 * and is dup'ed there. Local. */
int pcoll_schedule_create(const void *comm, pcoll_schedule **schedule);

/*
 * Send to a rank, receive from one. Messages from one rank to another with the same tag
 * (0 or more) match in the order in which they were written down on either side,
 * whenever they are carried out. A send is done when its buffer may be used again.
 * MPI_PROC_NULL: nothing is sent or received. PCOLL_EINVAL names the argument; nothing
 * has been added then. May be NULL: from (no elements), into (no elements), label. Local.
 */
int pcoll_schedule_send(pcoll_schedule *schedule, const void *from,
                        const pcoll_buffer *shape, int32_t dest, int32_t tag,
                        const char *label, int32_t *op);
int pcoll_schedule_recv(pcoll_schedule *schedule, void *into, const pcoll_buffer *shape,
                        int32_t source, int32_t tag, const char *label, int32_t *op);
/* into[i] = from[i] op into[i]. from is into, or apart from it. May be NULL: from (no
 * elements), into (no elements), label. Local. */
int pcoll_schedule_reduce(pcoll_schedule *schedule, const void *from, void *into,
                          const pcoll_buffer *shape, const char *label, int32_t *op);
int pcoll_schedule_copy(pcoll_schedule *schedule, const void *from, void *into,
                        const pcoll_buffer *shape, const char *label, int32_t *op);
/* Does nothing: a point for others to wait for. May be NULL: label. Local. */
int pcoll_schedule_nop(pcoll_schedule *schedule, const char *label, int32_t *op);
/* Done so many seconds after its gate has opened. May be NULL: label. Local. */
int pcoll_schedule_timer(pcoll_schedule *schedule, double seconds, const char *label,
                         int32_t *op);
/* More predecessors of op. Its gate opens with k of all of them, 0: as it was said
 * before, else all. May be NULL: predecessors (count 0). Local. */
int pcoll_schedule_after(pcoll_schedule *schedule, int32_t op,
                         const int32_t *predecessors, int32_t count, uint32_t k);

/*
 * Check the schedule and compare it with those of the others. progress is an enum
 * pcoll_progress, and may differ between ranks. Collective. PCOLL_EINVAL: this rank's
 * part is wrong (a cycle, a gate that cannot open, memory that two operations use at
 * once); PCOLL_EMISMATCH: another rank's is, or the messages do not match; an error on
 * every rank, and the schedule is as it was. PCOLL_ETHREAD: MPI's thread level is too
 * low for the agent.
 */
int pcoll_schedule_commit(pcoll_schedule *schedule, int32_t progress);
/* In place of a commit, for a rank whose part has gone wrong: the others' commits give
 * PCOLL_EMISMATCH. Collective with their commit. */
int pcoll_schedule_give_up(pcoll_schedule *schedule);

/* Begin a run. Local; PCOLL_ESTATE if the last one was not waited for. */
int pcoll_schedule_start(pcoll_schedule *schedule);
/* Wait until all operations of the run are done on this rank, at most timeout_us
 * microseconds (0: only look, and make progress). PCOLL_EAGAIN when they are not. Never
 * burns a core. Local. */
int pcoll_schedule_wait(pcoll_schedule *schedule, int64_t timeout_us);
/* Runs that are over on this rank. Local. */
int pcoll_schedule_runs(pcoll_schedule *schedule, uint64_t *runs);
/* What the current run waits for, in one sentence. Local. */
int pcoll_schedule_pending(pcoll_schedule *schedule, char *text, uint64_t capacity);

/* As pcoll_handle_schedule and pcoll_handle_goal; before the commit as well. Local. */
int pcoll_schedule_text(pcoll_schedule *schedule, const char *format, char **text);
int pcoll_schedule_goal(pcoll_schedule *schedule, double ns_per_byte, char **text);

/*
 * Free in two steps, as a handle. Collective once it is committed, else local. A run
 * that this rank has started is brought to its end; one that only others have started
 * is answered with empty messages, so that it ends there. May be NULL: schedule.
 */
int pcoll_schedule_free_begin(pcoll_schedule *schedule);
int pcoll_schedule_free(pcoll_schedule **schedule, int64_t timeout_us);

/*
 * Gossip buffers (docs/gossip.md): one model per rank, averaged in pairs without
 * anybody waiting for anybody. All functions but create and free are one-sided: they
 * read and write the memory of others without their help, and return when that is over.
 * A peer on another node is helped by its agent.
 */
typedef struct pcoll_gossip pcoll_gossip;

typedef struct pcoll_gossip_options {
    uint64_t count; /* elements of the model */
    int32_t dtype;  /* float16, bfloat16, float32 or float64 */
    int32_t bits;   /* of the lattice codec, 2 to 16; 0: none */
    int32_t rotate; /* with the codec: rotate each block first */
    double
        margin; /* with the codec: room for distances so much larger than those seen */
    uint64_t seed;            /* with the codec; ranks make different ones of it */
    uint32_t queue_slots;     /* messages that a rank's queue holds, 1 to 1024 */
    uint32_t max_uncollected; /* deltas that may lie at a rank before it collects */
    uint64_t shape;           /* any number that is the same if the shape is */
    uint64_t topology;        /* the same for the graph */
    int32_t progress;         /* enum pcoll_progress */
    int32_t on_failure;       /* enum pcoll_failure */
} pcoll_gossip_options;

/* No codec, a queue of 4 messages, at most 2 deltas uncollected, the agent. count and
 * dtype are for the caller to give: 0 elements of float32. Local. */
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

/* Collective. The options, but for margin, seed and progress, are the same on all
 * ranks: PCOLL_EMISMATCH otherwise. */
int pcoll_gossip_create(const void *comm, const pcoll_gossip_options *options,
                        pcoll_gossip **gossip);
/* Make x what others read of this rank; *version counts from 1. */
int pcoll_gossip_publish(pcoll_gossip *gossip, const void *x, uint64_t *version);
/* The last published model of the peer, of one version throughout. key: this rank's own
 * model, with the codec, or NULL for 0; not where out is. PCOLL_EEMPTY: there is none
 * yet. PCOLL_EAGAIN: the peer publishes faster than it can be read. May be NULL: key. */
int pcoll_gossip_read(pcoll_gossip *gossip, uint32_t peer, const void *key, void *out,
                      uint64_t *version);
/* What lies at a peer uncollected, its model will take, as pcoll_gossip_collect does; or
 * this part of it, 0 to 1, where the rest goes elsewhere (A2CiD2: to x~). Averages from
 * now on aim at where the peer will be. */
int pcoll_gossip_set_taken(pcoll_gossip *gossip, double part);
/* x -= weight (x - the peer's, uncollected deltas included), in place; what x lost is
 * given to the peer: publish x before the next one. momentum moves ratio times as
 * far. *averaged is 0, and nothing has changed, if max_uncollected lie there. May be NULL:
 * momentum. */
int pcoll_gossip_average(pcoll_gossip *gossip, uint32_t peer, void *x, double weight,
                         void *momentum, double ratio, int32_t *averaged);
/* Add to x what others have given; ratio times that to momentum. May be NULL: momentum. */
int pcoll_gossip_collect(pcoll_gossip *gossip, void *x, void *momentum, double ratio,
                         uint64_t *deltas);
/* What lies there uncollected: float64 if the model is, else float32. */
int pcoll_gossip_pending(pcoll_gossip *gossip, void *out);
/* Send x to the peer's queue; *pushed is 0 if that is full. With the codec it decodes
 * for certain with this key (NULL: 0); sent becomes what the peer will have. May be NULL:
 * key, sent. */
int pcoll_gossip_push(pcoll_gossip *gossip, uint32_t peer, const void *x,
                      const void *key, void *sent, int32_t *pushed);
/* The oldest message of this rank's queue; *taken is 0 if there is none. out is not
 * key. May be NULL: key. */
int pcoll_gossip_drain(pcoll_gossip *gossip, const void *key, void *out,
                       uint32_t *source, int32_t *taken);
/* The newest message in anybody's queue, which stays there. out is not key. May be NULL:
 * key. */
int pcoll_gossip_peek(pcoll_gossip *gossip, uint32_t peer, const void *key, void *out,
                      uint32_t *source, int32_t *found);
/* A board that all share, for pairing: one number for each rank and a counter, all 0 at
 * the start. Each step is atomic. */
int pcoll_gossip_board_read(pcoll_gossip *gossip, int64_t *numbers);
int pcoll_gossip_board_swap(pcoll_gossip *gossip, uint32_t rank, int64_t expected,
                            int64_t desired, int64_t *before);
int pcoll_gossip_board_count(pcoll_gossip *gossip, int64_t delta, int64_t *before);
/* Local. */
int pcoll_gossip_get_stats(pcoll_gossip *gossip, pcoll_gossip_stats *stats);
/* The ranks that have died, with PCOLL_FAILURE_CONTINUE: a set in ranks/64 (rounded up)
 * words. Calls about one of them return PCOLL_EFAILED. Local; any thread may ask. */
int pcoll_gossip_failed(pcoll_gossip *gossip, uint64_t *set);
/* Bytes of the window of each rank. Local. */
int pcoll_gossip_bytes(pcoll_gossip *gossip, uint64_t *bytes);
/* Collective. PCOLL_EAGAIN: not all have come within the time; call again. May be NULL:
 * gossip. */
int pcoll_gossip_free(pcoll_gossip **gossip, int64_t timeout_us);

/*
 * A vector in few bits, for readers who have a similar one: their key. What is lost
 * depends on the distance between the two, not on their length (docs/quantization.md).
 *
 * A payload describes itself: header, a step and a hash for each block of 1024
 * elements, and the planes of all blocks. It is in the byte order of this machine;
 * another one refuses it. Vectors are aligned as their dtype asks for, payloads need
 * not be. All of this is local, and MPI need not be initialized.
 */
typedef struct pcoll_lattice {
    uint64_t count; /* elements */
    uint64_t seed;  /* of dithers and rotation; another one for each message */
    int32_t
        dtype; /* float32, float64 (kept to float32's precision), float16, bfloat16 */
    int32_t bits;   /* an element, 2 to 16 */
    int32_t high;   /* 1: the other 16 - bits as well, for keys that are too far */
    int32_t rotate; /* 1: each block is rotated first, which spreads outliers */
} pcoll_lattice;

/* 8 bits, one plane, not rotated. count and dtype as for gossip. Local. */
void pcoll_lattice_init(pcoll_lattice *lattice);
/* Bytes of a payload, and how many blocks it has. PCOLL_EINVAL names the member. */
int pcoll_lattice_size(const pcoll_lattice *lattice, uint64_t *bytes, uint64_t *blocks);
/* distances[b] = max|x - key| over block b, as it is encoded (rotated, if that is
 * asked for); key NULL: 0. Rounded to float32; not finite where x or key is not. May be
 * NULL: key, x (no elements), distances (no elements). */
int pcoll_lattice_distances(const pcoll_lattice *lattice, const void *x,
                            const void *key, float *distances);
/*
 * Write a payload of the bytes that pcoll_lattice_size says. Keys up to margin x
 * distances[b] away in block b (max norm, as above) decode for certain; distances NULL:
 * those from `key`; key NULL as well: from 0. PCOLL_EINVAL: an argument, an element
 * that is not finite as float32, or too large (about 2^125; rotated, 2^117). May be NULL:
 * key, distances, x (no elements).
 */
int pcoll_lattice_encode(const pcoll_lattice *lattice, const void *x, const void *key,
                         const float *distances, double margin, void *payload);
/* Check header and table of a payload and describe it. PCOLL_EPROTOCOL: truncated,
 * damaged, or not a payload; the message says which. May be NULL: payload (bytes 0). */
int pcoll_lattice_look(const void *payload, uint64_t bytes, pcoll_lattice *lattice);
/*
 * Decode with a key of the payload's count and dtype, NULL: 0. failed[b] becomes 1
 * where block b does not decode (the key is too far, or the block damaged), else 0;
 * *failures counts them. out may be key; what it holds in a failed block means nothing.
 * The errors of pcoll_lattice_look. Any bytes may be handed in. May be NULL: payload
 * (bytes 0), key.
 */
int pcoll_lattice_decode(const void *payload, uint64_t bytes, const void *key,
                         void *out, uint8_t *failed, uint64_t *failures);
/* x -= weight (x - what the payload decodes to with key x), in one pass. A failed block
 * of x stays as it is. May be NULL: payload (bytes 0). */
int pcoll_lattice_average(const void *payload, uint64_t bytes, double weight, void *x,
                          uint8_t *failed, uint64_t *failures);

/*
 * Grids and shares of grouped averaging (docs/groups.md). A grid is the lengths of its
 * sides, 1 to 16 of them. Cells are numbered row by row: the last axis is the fastest
 * digit. All of this is local, and MPI need not be initialized. PCOLL_EINVAL names the
 * argument; what is written to the outputs means nothing then.
 */

/* Whether there are such a grid and cells for all peers: sides of 1 or more, fewer than
 * 2^63 cells. */
int pcoll_grid_check(const uint32_t *sides, uint32_t axes, uint64_t peers);
/* A good grid for 1 to 2^32 peers; sides has room for 16. */
int pcoll_grid_auto(uint64_t peers, uint32_t *sides, uint32_t *axes);
/* The lines of the cells along an axis: the cells of one line, and no others of that
 * axis, have one number, less than cells / side. May be NULL: cells (count 0), lines
 * (count 0). */
int pcoll_grid_lines(const uint32_t *sides, uint32_t axes, uint32_t axis,
                     const uint64_t *cells, uint64_t count, uint64_t *lines);
/* Their coordinates on the axis. May be NULL: cells (count 0), coordinates (count 0). */
int pcoll_grid_coordinates(const uint32_t *sides, uint32_t axes, uint32_t axis,
                           const uint64_t *cells, uint64_t count,
                           uint32_t *coordinates);
/* The cells with their coordinates on the axis replaced by chunks; moved may be cells.
 * May be NULL: cells (count 0), chunks (count 0), moved (count 0). */
int pcoll_grid_move(const uint32_t *sides, uint32_t axes, uint32_t axis,
                    const uint64_t *cells, const uint32_t *chunks, uint64_t count,
                    uint64_t *moved);
/* Where the members at these positions of groups of these sizes, each on its line of
 * the round's axis, go after the round with dynamic keys: coordinates that differ
 * within a group. May be NULL: lines (count 0), positions (count 0), sizes (count 0),
 * chunks (count 0). */
int pcoll_grid_chunks(const uint32_t *sides, uint32_t axes, uint64_t peers,
                      uint64_t round, const uint64_t *lines, const uint32_t *positions,
                      const uint32_t *sizes, uint64_t count, uint32_t *chunks);
/* The part of a vector that each member of a group is to reduce, by their bandwidths in
 * any unit: those with which the slowest is done first. PCOLL_EINVAL: one that is not
 * above 0 or not finite; PCOLL_ENOMEM. */
int pcoll_group_shares(const double *bandwidths, uint32_t members, double *shares);
/* Where the parts of count elements begin and end: bounds has room for members + 1, all
 * multiples of grain (0: of 1) but for the last, count. A share of 0 has no element. */
int pcoll_group_bounds(const double *shares, uint32_t members, uint64_t count,
                       uint64_t grain, uint64_t *bounds);

/*
 * Grouped averaging (docs/groups.md): ranks on a virtual grid; round t averages along
 * axis t mod axes, among those of one line that are there. A member that is silent for
 * longer than the timeout makes the round void for its group alone: all its members
 * keep their inputs then. The agent does the work, also while the application computes;
 * the group of the next round is found as soon as one is over.
 */
typedef struct pcoll_group pcoll_group;

enum pcoll_keys {
    PCOLL_KEYS_AUTO,   /* static if the ranks fill the grid */
    PCOLL_KEYS_STATIC, /* cells stay */
    PCOLL_KEYS_DYNAMIC /* cells move: whoever has met does not meet again soon */
};

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
    int64_t timeout_us; /* how long a member may be silent in mid-round */
    int64_t window_us;  /* how long to wait for more members; 0: by the timeout */
    int32_t progress;   /* enum pcoll_progress */
    int32_t on_failure; /* enum pcoll_failure */
} pcoll_group_options;

/* A grid that fits the ranks, each in the cell of its number, all links equal, ten
 * seconds of silence, the agent. count and dtype as for gossip. Local. */
void pcoll_group_options_init(pcoll_group_options *options);

typedef struct pcoll_group_round {
    uint64_t index;    /* of the round */
    uint64_t missed;   /* rounds before it, since the last one of this rank */
    uint32_t axis;     /* it was along this one */
    uint32_t members;  /* of the group; 0: void */
    uint32_t position; /* of this rank among them */
    uint32_t active;   /* how many of them contributed */
    int32_t exact; /* so many rounds as there are axes were complete, this the last */
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

/* What the grid, the keys and the time limits became. */
typedef struct pcoll_group_shape {
    uint32_t axes, side[16];
    int32_t keys;
    int64_t timeout_us, window_us;
    uint64_t bytes; /* of the window, and of the rank's own memory */
} pcoll_group_shape;

/* Collective. The options, but for cell, bandwidth (which all give, or none) and
 * progress, are the same on all ranks: PCOLL_EMISMATCH otherwise; no two ranks have one
 * cell. */
int pcoll_group_create(const void *comm, const pcoll_group_options *options,
                       pcoll_group **group);
/* Local. Contribute; `send` may be used again at once. PCOLL_ESTATE: the last one has
 * not been waited for, or this rank is away. */
int pcoll_group_start(pcoll_group *group, const void *send);
/* Until the round that took the contribution is over: `receive` becomes the average of
 * those who contributed, or what this rank gave if the round is void. PCOLL_EAGAIN: not
 * within the time. */
int pcoll_group_wait(pcoll_group *group, int64_t timeout_us, void *receive,
                     pcoll_group_round *round);
/* Of the round waited for last: ranks and their shares; room for all ranks. Local. */
int pcoll_group_members(pcoll_group *group, uint32_t *ranks, double *shares);
/* Local. Take part no more, beginning with a round that this rank has not started. */
int pcoll_group_leave(pcoll_group *group);
/* Local. Take part again, in the round that the others are at. */
int pcoll_group_rejoin(pcoll_group *group);
/* Local. What this rank knows: the round it is at, whether it is away (or about to be),
 * and of each rank: 0 there, 1 away, 2 suspected, 3 dead. */
int pcoll_group_look(pcoll_group *group, uint64_t *round, int32_t *away,
                     uint8_t *statuses);
/* Local. From the next matchmaking on. */
int pcoll_group_set_bandwidth(pcoll_group *group, double bandwidth);
/* Local. What the round waits for, in words. */
int pcoll_group_pending(pcoll_group *group, char *text, uint64_t capacity);
/* Local. */
int pcoll_group_get_stats(pcoll_group *group, pcoll_group_stats *stats);
int pcoll_group_get_shape(pcoll_group *group, pcoll_group_shape *shape);
/* Collective. Leaves first. PCOLL_EAGAIN: not all have come within the time; call
 * again. May be NULL: group. */
int pcoll_group_free(pcoll_group **group, int64_t timeout_us);

/* cffi:end */

/*
 * Shaped like MPI: for C only, declared where mpi.h has been included before this
 * header. They return MPI's error codes, after calling the communicator's error handler
 * as MPI does; pcoll_last_error() has the details.
 */
#ifdef MPI_VERSION

/*
 * MPI_Allreduce, completed by a quorum. Collective; blocks until the round that this
 * call stands for is complete (its t-th call from one place: round t).
 *
 * quorum    that of the communicator (PCOLL_Comm_set_quorum), else PARTIALCOLL_QUORUM,
 *           else "full": an ordinary allreduce. What comes late rides in the next round
 *           (MPI_SUM), or replaces what rode there (other ops).
 * sendbuf   count elements, or MPI_IN_PLACE; may be reused when the call returns.
 * recvbuf   count elements, apart from sendbuf; holds the sum of the round.
 * count     elements, at least 0.
 * type, op  a predefined pair that MPI allows; or a commutative op of yours, with
 * "full" only, on any datatype without gaps. They are used during the call only, on
 *           this thread or on another one that waits here meanwhile.
 * comm      an intra-communicator.
 *
 * May be NULL: sendbuf (count 0), recvbuf (count 0).
 *
 * With the quorum full MPI does the call, unless rounds of ours are faster or
 * PARTIALCOLL_ALGORITHM or PARTIALCOLL_DOMAIN asks for them (docs/interposer.md). Else the
 * first call from a place in the program makes a handle, which is cached on the
 * communicator by that place, count, type, op and quorum, and freed with it. So two
 * sums in one loop never share a handle. A place is where the call stands in the
 * compiled program: a function that wraps this call is one place, unless it is inlined.
 * The environment is read in the first call on a communicator and after
 * PCOLL_Comm_set_quorum.
 *
 * Threads: as MPI_Allreduce, different communicators by different threads. A quorum
 * other than full needs MPI_THREAD_MULTIPLE, or PARTIALCOLL_PROGRESS=manual, unless all
 * ranks are on one node.
 * Errors: MPI_ERR_COMM, MPI_ERR_COUNT, MPI_ERR_TYPE, MPI_ERR_OP, MPI_ERR_BUFFER for the
 * argument of that name; MPI_ERR_ARG for a quorum or a PARTIALCOLL_ALGORITHM that is
 * none, and for an op of yours with another quorum than "full"; MPI_ERR_NO_MEM;
 * MPI_ERR_OTHER if the ranks' arguments differ (on every rank) or the thread level is
 * too low; those of MPI itself.
 */
int PCOLL_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type,
                    MPI_Op op, MPI_Comm comm);

/*
 * The quorum of PCOLL_Allreduce on this communicator, in the text form of
 * pcoll_policy_parse, which may also end with "history=" and a number of rounds, and with
 * "deliver=one" or "deliver=all" (docs/interposer.md); NULL or "": what the environment
 * says. Local, but all ranks must give the same before their next PCOLL_Allreduce there.
 * Not inherited by duplicates.
 * May be NULL: quorum. Errors: MPI_ERR_ARG for a text that is no policy, MPI_ERR_COMM,
 * MPI_ERR_NO_MEM.
 */
int PCOLL_Comm_set_quorum(MPI_Comm comm, const char *quorum);

#endif

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
