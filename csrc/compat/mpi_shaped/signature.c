/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops of users reduce every datatype without gaps. A predefined datatype may have some
 * (MPI_DOUBLE_INT), which then travel; in a derived one a gap may be somebody's data.
 */
#include "compat/mpi_shaped/signature.h"

#include "compat/mpi_shaped/table.h"
#include "transport/mpi/newer.h"

static bool signature_is_derived(MPI_Datatype type)
{
    int combiner;
    type_combiner(type, &combiner);
    return combiner != MPI_COMBINER_NAMED;
}

/* Bytes of an element; 0 for one with gaps, or of none. */
static uint64_t signature_measure(MPI_Datatype type)
{
    MPI_Count lb, extent, true_lb, true_extent, size;
    MPI_Type_get_extent_x(type, &lb, &extent);
    MPI_Type_get_true_extent_x(type, &true_lb, &true_extent);
    MPI_Type_size_x(type, &size);
    if (size < 1 || lb != 0 || true_lb != 0 || true_extent > extent)
        return 0;
    if (signature_is_derived(type) && (extent != size || true_extent != size))
        return 0;
    return (uint64_t)extent;
}

enum found signature_find(MPI_Datatype type, MPI_Op op, struct signature *s)
{
    int commutes = 0;
    *s = (struct signature){.mpi_type = MPI_DATATYPE_NULL, .mpi_op = MPI_OP_NULL};
    enum found found = table_find(type, op, s);
    if (found != FOUND_UNKNOWN)
        return found;
    MPI_Op_commutative(op, &commutes);
    if (!commutes)
        return FOUND_ORDERED;
    *s = (struct signature){.dtype = PCOLL_MPI_TYPE,
                            .op = PCOLL_MPI_OP,
                            .mpi_type = type,
                            .mpi_op = op,
                            .of_user = true,
                            .element = signature_measure(type)};
    return s->element ? FOUND : FOUND_GAPS;
}

bool signature_same(const struct signature *a, const struct signature *b)
{
    if (a->dtype != b->dtype || a->op != b->op || a->of_user != b->of_user ||
        a->element != b->element)
        return false;
    return a->of_user || (a->mpi_type == b->mpi_type && a->mpi_op == b->mpi_op);
}

pcoll_buffer signature_buffer(const struct signature *s, uint64_t count)
{
    return (pcoll_buffer){.count = count,
                          .dtype = s->dtype,
                          .op = s->op,
                          .mpi_type = &s->mpi_type,
                          .mpi_op = &s->mpi_op};
}
