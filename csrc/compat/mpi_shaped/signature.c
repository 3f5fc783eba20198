/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one place where MPI's predefined datatypes and ops become the core's. A datatype
 * is a kind and MPI's own size of it, so MPI_LONG and Fortran's INTEGER need no
 * assumptions. Where the core has no dtype of that kind and size, MPI reduces. What is
 * not listed here, MPI does not define, or not every MPI.
 *
 * To extend it: a new dtype of the core is a row of `dtypes`, a new op one of `ops`,
 * and the ops that MPI allows for a kind are in `allowed`.
 */
#include "compat/mpi_shaped/signature.h"

#include "transport/mpi/mpi_calls.h"

/* OTHER_SIGNED: Fortran's integers and those of all languages, which have no truth. */
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

/* Datatypes of MPI by kind. Those that an MPI was built without are MPI_DATATYPE_NULL.
 */
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

/* The core's dtype of a kind and a size in bytes. */
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

/* The last two are MPI's only, which has a bit for them nevertheless. The ops for
 * windows reduce nothing. */
enum { MAXLOC = PCOLL_MPI_OP, MINLOC, FOR_WINDOWS };
static const struct {
    MPI_Op op;
    int code;
} ops[] = {
    {MPI_SUM, PCOLL_SUM},     {MPI_PROD, PCOLL_PROD},     {MPI_MIN, PCOLL_MIN},
    {MPI_MAX, PCOLL_MAX},     {MPI_LAND, PCOLL_LAND},     {MPI_LOR, PCOLL_LOR},
    {MPI_LXOR, PCOLL_LXOR},   {MPI_BAND, PCOLL_BAND},     {MPI_BOR, PCOLL_BOR},
    {MPI_BXOR, PCOLL_BXOR},   {MPI_MAXLOC, MAXLOC},       {MPI_MINLOC, MINLOC},
    {MPI_NO_OP, FOR_WINDOWS}, {MPI_REPLACE, FOR_WINDOWS},
};

/* Bit c: MPI allows op c for this kind (MPI-4.1, sections 6.9.2 and 6.9.4). */
enum {
    SUMS = 1 << PCOLL_SUM | 1 << PCOLL_PROD,
    ORDER = 1 << PCOLL_MIN | 1 << PCOLL_MAX,
    LOGIC = 1 << PCOLL_LAND | 1 << PCOLL_LOR | 1 << PCOLL_LXOR,
    BITS = 1 << PCOLL_BAND | 1 << PCOLL_BOR | 1 << PCOLL_BXOR,
    PLACES = 1 << MAXLOC | 1 << MINLOC
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

enum {
    TYPES = sizeof types / sizeof *types,
    DTYPES = sizeof dtypes / sizeof *dtypes,
    OPS = sizeof ops / sizeof *ops
};

static int table_find_op(MPI_Op op)
{
    for (int i = 0; i < OPS; i++)
        if (ops[i].op == op)
            return ops[i].code;
    return -1;
}

static int table_find_type(MPI_Datatype type)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].type == type)
            return i;
    return -1;
}

/* One that an MPI has the name of only has no size. */
static enum found table_use_mpi(MPI_Datatype type, MPI_Op op, int code, int size,
                                struct signature *s)
{
    if (size < 1)
        return FOUND_UNDEFINED;
    s->dtype = PCOLL_MPI_TYPE;
    s->op = code < PCOLL_MPI_OP ? code : PCOLL_MPI_OP;
    s->mpi_type = type;
    s->mpi_op = op;
    return FOUND;
}

static enum found table_find(MPI_Datatype type, MPI_Op op, struct signature *s)
{
    int code = table_find_op(op), size;
    if (code < 0)
        return FOUND_UNKNOWN;
    int at = table_find_type(type);
    if (at < 0 || !(allowed[types[at].kind] & 1u << code))
        return FOUND_UNDEFINED;
    MPI_Type_size(type, &size);
    enum kind kind = types[at].kind == OTHER_SIGNED ? SIGNED : types[at].kind;
    for (int i = 0; i < DTYPES; i++) {
        if (dtypes[i].kind != kind || dtypes[i].size != size)
            continue;
        s->dtype = dtypes[i].dtype;
        s->op = code;
        return FOUND;
    }
    return table_use_mpi(type, op, code, size, s);
}

/*
 * Ops of users reduce every datatype without gaps. A predefined datatype may have some
 * (MPI_DOUBLE_INT), which then travel; in a derived one a gap may be somebody's data.
 */

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
