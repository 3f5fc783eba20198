/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one place where MPI's predefined datatypes and ops become the core's. A datatype
 * is a kind and MPI's own size of it, so MPI_LONG and Fortran's INTEGER need no
 * assumptions. Where the core has no dtype of that kind and size, MPI reduces. MPI, or some
 * MPI, does not define what is not listed here.
 *
 * A new dtype of the core is a row of `dtypes`. `allowed` has the ops that MPI allows for a kind.
 */
#include "compat/mpi_shaped/cache.h"

#include "transport/mpi/mpi_internal.h"

/* OTHER_SIGNED: integers of Fortran and of all languages, which have no logical ops. */
enum kind {
    REAL,
    SIGNED,
    OTHER_SIGNED,
    UNSIGNED,
    COMPLEX,
    LOGICAL,
    BYTES,
    PAIR,
    KINDS
};

#ifndef MPI_REAL2
#define MPI_REAL2 MPI_DATATYPE_NULL
#endif
#ifndef MPI_REAL16
#define MPI_REAL16 MPI_DATATYPE_NULL
#endif
#ifndef MPI_COMPLEX4
#define MPI_COMPLEX4 MPI_DATATYPE_NULL
#endif
#ifndef MPI_COMPLEX32
#define MPI_COMPLEX32 MPI_DATATYPE_NULL
#endif
#ifndef MPI_INTEGER16
#define MPI_INTEGER16 MPI_DATATYPE_NULL
#endif

/* Each row ends with 0. A type that an MPI was built without is MPI_DATATYPE_NULL. */
static const MPI_Datatype types[KINDS][16] = {
    [REAL] = {MPI_DOUBLE, MPI_FLOAT, MPI_REAL, MPI_REAL4, MPI_REAL8,
              MPI_DOUBLE_PRECISION, MPI_LONG_DOUBLE, MPI_REAL2, MPI_REAL16},
    [SIGNED] = {MPI_INT, MPI_LONG, MPI_LONG_LONG_INT, MPI_SHORT, MPI_SIGNED_CHAR,
                MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T},
    [OTHER_SIGNED] = {MPI_AINT, MPI_OFFSET, MPI_COUNT, MPI_INTEGER, MPI_INTEGER1,
                      MPI_INTEGER2, MPI_INTEGER4, MPI_INTEGER8, MPI_INTEGER16},
    [UNSIGNED] = {MPI_UNSIGNED, MPI_UNSIGNED_LONG, MPI_UNSIGNED_LONG_LONG,
                  MPI_UNSIGNED_SHORT, MPI_UNSIGNED_CHAR, MPI_UINT8_T, MPI_UINT16_T,
                  MPI_UINT32_T, MPI_UINT64_T},
    [COMPLEX] = {MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_CXX_FLOAT_COMPLEX,
                 MPI_CXX_DOUBLE_COMPLEX, MPI_COMPLEX, MPI_DOUBLE_COMPLEX, MPI_COMPLEX8,
                 MPI_COMPLEX16, MPI_C_LONG_DOUBLE_COMPLEX, MPI_CXX_LONG_DOUBLE_COMPLEX,
                 MPI_COMPLEX4, MPI_COMPLEX32},
    [LOGICAL] = {MPI_C_BOOL, MPI_CXX_BOOL, MPI_LOGICAL},
    [BYTES] = {MPI_BYTE},
    [PAIR] = {MPI_FLOAT_INT, MPI_DOUBLE_INT, MPI_LONG_INT, MPI_2INT, MPI_SHORT_INT,
              MPI_LONG_DOUBLE_INT, MPI_2REAL, MPI_2DOUBLE_PRECISION, MPI_2INTEGER}};

/* The core's dtype for a kind and a size in bytes. */
static const struct {
    enum kind kind;
    int size, dtype;
} dtypes[] = {
    {REAL, 8, PCOLL_FLOAT64},      {REAL, 4, PCOLL_FLOAT32},
    {SIGNED, 1, PCOLL_INT8},       {SIGNED, 2, PCOLL_INT16},
    {SIGNED, 4, PCOLL_INT32},      {SIGNED, 8, PCOLL_INT64},
    {UNSIGNED, 1, PCOLL_UINT8},    {UNSIGNED, 2, PCOLL_UINT16},
    {UNSIGNED, 4, PCOLL_UINT32},   {UNSIGNED, 8, PCOLL_UINT64},
    {COMPLEX, 8, PCOLL_COMPLEX64}, {COMPLEX, 16, PCOLL_COMPLEX128},
    {LOGICAL, 1, PCOLL_BOOL},      {BYTES, 1, PCOLL_UINT8},
};

/* Bit c: MPI allows op c for this kind (MPI-4.1, sections 6.9.2 and 6.9.4). */
enum {
    SUMS = 1 << PCOLL_SUM | 1 << PCOLL_PROD,
    ORDER = 1 << PCOLL_MIN | 1 << PCOLL_MAX,
    LOGIC = 1 << PCOLL_LAND | 1 << PCOLL_LOR | 1 << PCOLL_LXOR,
    BITS = 1 << PCOLL_BAND | 1 << PCOLL_BOR | 1 << PCOLL_BXOR,
    PLACES = 1 << PCOLL_MPI_OP /* MAXLOC and MINLOC, which the core does not have */
};
static const unsigned allowed[KINDS] = {
    [SIGNED] = SUMS | ORDER | LOGIC | BITS,
    [OTHER_SIGNED] = SUMS | ORDER | BITS,
    [UNSIGNED] = SUMS | ORDER | LOGIC | BITS,
    [REAL] = SUMS | ORDER,
    [COMPLEX] = SUMS,
    [LOGICAL] = LOGIC,
    [BYTES] = BITS,
    [PAIR] = PLACES,
};

static enum kind signature_kind_of(MPI_Datatype type)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (const MPI_Datatype *t = types[kind]; *t; t++)
            if (*t == type)
                return kind;
    return KINDS;
}

enum found signature_find(MPI_Datatype type, MPI_Op op, struct signature *s)
{
    int code = 0, commutes = 0, size;
    struct mpi_layout layout;
    *s = (struct signature){
        .dtype = PCOLL_MPI_TYPE, .op = PCOLL_MPI_OP, .mpi_type = type, .mpi_op = op};
    while (code < PCOLL_MPI_OP && mpi_op_of(code) != op)
        code++;
    if (op == MPI_NO_OP || op == MPI_REPLACE) /* They are for windows. */
        return FOUND_UNDEFINED;
    if (code == PCOLL_MPI_OP && op != MPI_MAXLOC && op != MPI_MINLOC) {
        MPI_Op_commutative(op, &commutes);
        if (!commutes)
            return FOUND_ORDERED;
        if (mpi_layout_of(type, &layout) != PCOLL_OK || layout.size < 1 || layout.gaps)
            return FOUND_GAPS;
        s->of_user = true;
        s->element = (uint64_t)layout.extent;
        return FOUND;
    }
    enum kind kind = signature_kind_of(type);
    if (kind == KINDS || !(allowed[kind] & 1u << code))
        return FOUND_UNDEFINED;
    MPI_Type_size(type, &size);
    kind = kind == OTHER_SIGNED ? SIGNED : kind;
    s->op = code;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].kind == kind && dtypes[i].size == size) {
            *s = (struct signature){.dtype = dtypes[i].dtype,
                                    .op = code,
                                    .mpi_type = MPI_DATATYPE_NULL,
                                    .mpi_op = MPI_OP_NULL};
            break;
        }
    /* MPI has only the name of a datatype without a size. */
    return size < 1 ? FOUND_UNDEFINED : FOUND;
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
