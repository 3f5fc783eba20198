/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one place where MPI's datatypes and ops become the core's. A datatype is a kind
 * and MPI's own size of it, so MPI_LONG and Fortran's INTEGER need no assumptions. What
 * is not listed here is not taken: derived datatypes, ops of the user, pairs.
 *
 * To extend it: a new dtype of the core is a row of `dtypes`, a new op one of `ops`,
 * and the ops that MPI allows for a kind are in `allowed`.
 */
#include "table.h"

enum kind { SIGNED, UNSIGNED, REAL, KINDS };

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
    {MPI_AINT, SIGNED},
    {MPI_OFFSET, SIGNED},
    {MPI_COUNT, SIGNED},
    {MPI_UNSIGNED, UNSIGNED},
    {MPI_UNSIGNED_LONG, UNSIGNED},
    {MPI_UNSIGNED_LONG_LONG, UNSIGNED},
    {MPI_UNSIGNED_SHORT, UNSIGNED},
    {MPI_UNSIGNED_CHAR, UNSIGNED},
    {MPI_UINT8_T, UNSIGNED},
    {MPI_UINT16_T, UNSIGNED},
    {MPI_UINT32_T, UNSIGNED},
    {MPI_UINT64_T, UNSIGNED},
    {MPI_INTEGER, SIGNED},
    {MPI_INTEGER1, SIGNED},
    {MPI_INTEGER2, SIGNED},
    {MPI_INTEGER4, SIGNED},
    {MPI_INTEGER8, SIGNED},
    {MPI_REAL, REAL},
    {MPI_REAL4, REAL},
    {MPI_REAL8, REAL},
    {MPI_DOUBLE_PRECISION, REAL},
};

/* The core's dtype of a kind and a size in bytes. */
static const struct {
    enum kind kind;
    int size, dtype;
} dtypes[] = {
    {REAL, 8, PCOLL_FLOAT64},
    {REAL, 4, PCOLL_FLOAT32},
    {SIGNED, 4, PCOLL_INT32},
    {SIGNED, 8, PCOLL_INT64},
};

static const struct {
    MPI_Op op;
    int code;
} ops[] = {
    {MPI_SUM, PCOLL_SUM},
    {MPI_PROD, PCOLL_PROD},
    {MPI_MIN, PCOLL_MIN},
    {MPI_MAX, PCOLL_MAX},
};

/* Bit c: MPI allows op c of the core for this kind (MPI-4.1, section 6.9.2). */
#define ARITHMETIC                                                                     \
    (1u << PCOLL_SUM | 1u << PCOLL_PROD | 1u << PCOLL_MIN | 1u << PCOLL_MAX)
static const unsigned allowed[KINDS] = {
    [SIGNED] = ARITHMETIC, [UNSIGNED] = ARITHMETIC, [REAL] = ARITHMETIC};

enum {
    TYPES = sizeof types / sizeof *types,
    DTYPES = sizeof dtypes / sizeof *dtypes,
    OPS = sizeof ops / sizeof *ops
};

static int find_op(MPI_Op op)
{
    for (int i = 0; i < OPS; i++)
        if (ops[i].op == op)
            return ops[i].code;
    return -1;
}

static int find_type(MPI_Datatype type)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].type == type)
            return i;
    return -1;
}

bool table_find(MPI_Datatype type, MPI_Op op, int32_t *dtype, int32_t *code)
{
    if (type == MPI_DATATYPE_NULL || op == MPI_OP_NULL)
        return false;
    int at = find_type(type), size;
    *code = find_op(op);
    if (at < 0 || *code < 0 || !(allowed[types[at].kind] & 1u << *code))
        return false;
    MPI_Type_size(type, &size);
    for (int i = 0; i < DTYPES; i++) {
        *dtype = dtypes[i].dtype;
        if (dtypes[i].kind == types[at].kind && dtypes[i].size == size)
            return true;
    }
    return false;
}
