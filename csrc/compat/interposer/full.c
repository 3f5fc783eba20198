/* SPDX-License-Identifier: Apache-2.0 */
/* See full.h. The limits are measured with `bench/run.py interposer`: docs/interposer.md. */
#include "compat/interposer/full.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/doorbell.h"
#include "base/random.h"
#include "compat/interposer/settings.h"

/* Elements have at most so many bytes where complete rounds are ours: those that the core
 * has loops for have 32 at most. */
enum { LARGEST_ELEMENT = 64 };

/* Estimated cost of a handle, and what a call saves, in nanoseconds. */
enum { FIRST_HANDLE_NS = 15000000, NEXT_HANDLE_NS = 1000000 };
enum { CROWDED_SAVING_NS = 10000, BYTES_PER_SAVED_NS = 8 };

static struct full_facts facts;
_Atomic int full_reasons = 1; /* MPI has not begun */

const struct full_facts *full_facts(void)
{
    return &facts;
}

void full_watch(int change)
{
    CHECK(change == 1 || change == -1);
    atomic_fetch_add(&full_reasons, change);
}

/* The shortest payload for which our rounds are faster on one node; UINT64_MAX: none. */
static uint64_t ours_from(int ranks)
{
    if (!facts.one_node || ranks < 2)
        return UINT64_MAX;
    if (facts.crowded && ranks > 3)
#ifdef OPEN_MPI
        return 4096;
#else
        return 1;
#endif
    return facts.crowded || ranks == 2 ? 8192 : UINT64_MAX;
}

bool full_is_faster(int ranks, uint64_t bytes)
{
    return facts.asked || bytes >= ours_from(ranks);
}

static uint64_t hash_settings(const struct settings *s)
{
    return splitmix_mix(
        splitmix_mix((uint64_t)s->algorithm << 32 | (uint64_t)s->domain) ^
        ((uint64_t)s->domain_ranks << 1 | s->asked));
}

/* Cores that the ranks may use together. */
static int count_cores(void)
{
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    PMPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
    return CPU_COUNT(&all);
}

static void compare(int rank)
{
    const struct settings *s = settings();
    struct quorum quorum =
        s->all ? s->quorum : (struct quorum){.policy.kind = PCOLL_FULL};
    uint64_t hash = quorum_hash(&quorum), form = hash_settings(s),
             node = doorbell_neighborhood();
    PMPI_Query_thread(&facts.level);
    uint64_t values[] = {hash, ~hash, form, ~form, node, ~node, ~(uint64_t)facts.level};
    PMPI_Allreduce(MPI_IN_PLACE, values, 7, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    bool agreed = values[0] == ~values[1];
    facts.quorum = agreed ? quorum : (struct quorum){.policy.kind = PCOLL_FULL};
    facts.alike = values[2] == ~values[3];
    facts.asked = facts.alike && s->asked;
    facts.one_node = values[4] == ~values[5];
    facts.level = (int)~values[6];
    if (rank == 0 && !agreed)
        warn("rank 0: the ranks disagree about PARTIALCOLL_ALL or PARTIALCOLL_QUORUM: "
             "all of them wait for each other");
    if (rank == 0 && !facts.alike)
        warn("rank 0: the ranks disagree about PARTIALCOLL_ALGORITHM or "
             "PARTIALCOLL_DOMAIN: complete rounds are left to MPI");
}

void full_begin(void)
{
    int rank, size;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    PMPI_Comm_group(MPI_COMM_WORLD, &facts.all);
    compare(rank);
    facts.crowded = size > count_cores();
    uint64_t least = UINT64_MAX;
    for (int ranks = 2; ranks <= size && ranks <= 4; ranks++)
        least = ours_from(ranks) < least ? ours_from(ranks) : least;
    facts.short_bytes = least;
    facts.few = least == UINT64_MAX ? least : least / LARGEST_ELEMENT;
    if (facts.asked || quorum_is_partial(&facts.quorum))
        full_watch(1);
    full_watch(-1);
}

void full_end(void)
{
    full_watch(1);
    PMPI_Group_free(&facts.all);
}

/* Savings. Signatures that meet in a row of the table push each other out, on all ranks
 * alike, so each needs longer to pay. */

enum { ROWS = 32 };

struct full_savings {
    struct {
        uint64_t signature, ns;
    } row[ROWS];
};

bool full_pays(struct full_savings **s, const struct cache_key *key, int ranks,
               uint64_t bytes, bool first)
{
    if (facts.asked || quorum_is_partial(&key->quorum))
        return true;
    if (!*s && !(*s = calloc(1, sizeof **s)))
        return false;
    uint64_t signature =
        splitmix_mix(splitmix_mix(key->count) ^ ((uint64_t)key->signature.dtype << 32 |
                                                 (uint64_t)key->signature.op)) |
        1;
    size_t row = signature >> 1 & (ROWS - 1);
    if ((*s)->row[row].signature != signature) {
        (*s)->row[row].signature = signature;
        (*s)->row[row].ns = 0;
    }
    uint64_t saving = bytes / BYTES_PER_SAVED_NS;
    if (facts.crowded && ranks > 3)
        saving += CROWDED_SAVING_NS;
    (*s)->row[row].ns += saving;
    return (*s)->row[row].ns >= (first ? FIRST_HANDLE_NS : NEXT_HANDLE_NS);
}
