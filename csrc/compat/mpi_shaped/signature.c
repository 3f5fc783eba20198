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
    SIGNED,
    OTHER_SIGNED,
    UNSIGNED,
    REAL,
    COMPLEX,
    LOGICAL,
    BYTES,
    PAIR,
    KINDS
};

/* A type that an MPI was built without is MPI_DATATYPE_NULL. */
static const struct {
    MPI_Datatype type;
    enum kind kind;
} types[] = {
    {MPI_DOUBLE, REAL},
    {MPI_FLOAT, REAL},
    {MPI_INT, SIGNED},
    {MPI_LONG, SIGNED},
    {MPI_LONG_LONG_INT, SIGNED},
    {MPI_SHORT, SIGNED},
    {MPI_SIGNED_CHAR, SIGNED},
    {MPI_INT8_T, SIGNED},
    {MPI_INT16_T, SIGNED},
    {MPI_INT32_T, SIGNED},
    {MPI_INT64_T, SIGNED},
    {MPI_AINT, OTHER_SIGNED},
    {MPI_OFFSET, OTHER_SIGNED},
    {MPI_COUNT, OTHER_SIGNED},
    {MPI_UNSIGNED, UNSIGNED},
    {MPI_UNSIGNED_LONG, UNSIGNED},
    {MPI_UNSIGNED_LONG_LONG, UNSIGNED},
    {MPI_UNSIGNED_SHORT, UNSIGNED},
    {MPI_UNSIGNED_CHAR, UNSIGNED},
    {MPI_UINT8_T, UNSIGNED},
    {MPI_UINT16_T, UNSIGNED},
    {MPI_UINT32_T, UNSIGNED},
    {MPI_UINT64_T, UNSIGNED},
    {MPI_INTEGER, OTHER_SIGNED},
    {MPI_INTEGER1, OTHER_SIGNED},
    {MPI_INTEGER2, OTHER_SIGNED},
    {MPI_INTEGER4, OTHER_SIGNED},
    {MPI_INTEGER8, OTHER_SIGNED},
    {MPI_REAL, REAL},
    {MPI_REAL4, REAL},
    {MPI_REAL8, REAL},
    {MPI_DOUBLE_PRECISION, REAL},
    {MPI_C_FLOAT_COMPLEX, COMPLEX},
    {MPI_C_DOUBLE_COMPLEX, COMPLEX},
    {MPI_CXX_FLOAT_COMPLEX, COMPLEX},
    {MPI_CXX_DOUBLE_COMPLEX, COMPLEX},
    {MPI_COMPLEX, COMPLEX},
    {MPI_DOUBLE_COMPLEX, COMPLEX},
    {MPI_COMPLEX8, COMPLEX},
    {MPI_COMPLEX16, COMPLEX},
    {MPI_C_BOOL, LOGICAL},
    {MPI_CXX_BOOL, LOGICAL},
    {MPI_BYTE, BYTES},
    {MPI_LONG_DOUBLE, REAL},
    {MPI_C_LONG_DOUBLE_COMPLEX, COMPLEX},
    {MPI_CXX_LONG_DOUBLE_COMPLEX, COMPLEX},
    {MPI_LOGICAL, LOGICAL},
#ifdef MPI_REAL2
    {MPI_REAL2, REAL},
#endif
#ifdef MPI_REAL16
    {MPI_REAL16, REAL},
#endif
#ifdef MPI_COMPLEX4
    {MPI_COMPLEX4, COMPLEX},
#endif
#ifdef MPI_COMPLEX32
    {MPI_COMPLEX32, COMPLEX},
#endif
#ifdef MPI_INTEGER16
    {MPI_INTEGER16, OTHER_SIGNED},
#endif
    {MPI_FLOAT_INT, PAIR},
    {MPI_DOUBLE_INT, PAIR},
    {MPI_LONG_INT, PAIR},
    {MPI_2INT, PAIR},
    {MPI_SHORT_INT, PAIR},
    {MPI_LONG_DOUBLE_INT, PAIR},
    {MPI_2REAL, PAIR},
    {MPI_2DOUBLE_PRECISION, PAIR},
    {MPI_2INTEGER, PAIR},
};

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

#define LENGTH(array) (int)(sizeof(array) / sizeof *(array))

/* Find the core's dtype and op, and MPI's where MPI reduces. */
static enum found signature_look_up(MPI_Datatype type, MPI_Op op, struct signature *s)
{
    int code = 0, t = 0, size;
    while (code < PCOLL_MPI_OP && mpi_op_of(code) != op)
        code++;
    if (op == MPI_NO_OP || op == MPI_REPLACE) /* They are for windows. */
        return FOUND_UNDEFINED;
    if (code == PCOLL_MPI_OP && op != MPI_MAXLOC && op != MPI_MINLOC)
        return FOUND_UNKNOWN;
    while (t < LENGTH(types) && types[t].type != type)
        t++;
    if (t == LENGTH(types) || !(allowed[types[t].kind] & 1u << code))
        return FOUND_UNDEFINED;
    MPI_Type_size(type, &size);
    enum kind kind = types[t].kind == OTHER_SIGNED ? SIGNED : types[t].kind;
    s->op = code;
    for (int i = 0; i < LENGTH(dtypes); i++)
        if (dtypes[i].kind == kind && dtypes[i].size == size) {
            s->dtype = dtypes[i].dtype;
            return FOUND;
        }
    if (size < 1) /* MPI has only the name of this datatype. */
        return FOUND_UNDEFINED;
    *s = (struct signature){
        .dtype = PCOLL_MPI_TYPE, .op = code, .mpi_type = type, .mpi_op = op};
    return FOUND;
}

enum found signature_find(MPI_Datatype type, MPI_Op op, struct signature *s)
{
    int commutes = 0;
    struct mpi_layout layout;
    *s = (struct signature){.mpi_type = MPI_DATATYPE_NULL, .mpi_op = MPI_OP_NULL};
    enum found found = signature_look_up(type, op, s);
    if (found != FOUND_UNKNOWN)
        return found;
    MPI_Op_commutative(op, &commutes);
    if (!commutes)
        return FOUND_ORDERED;
    if (mpi_layout_of(type, &layout) != PCOLL_OK || layout.size < 1 || layout.gaps)
        return FOUND_GAPS;
    *s = (struct signature){.dtype = PCOLL_MPI_TYPE,
                            .op = PCOLL_MPI_OP,
                            .mpi_type = type,
                            .mpi_op = op,
                            .of_user = true,
                            .element = (uint64_t)layout.extent};
    return FOUND;
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
