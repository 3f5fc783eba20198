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

enum kind { SIGNED, UNSIGNED, REAL, COMPLEX, LOGICAL, BYTES, KINDS };

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

static const struct {
    MPI_Op op;
    int code;
} ops[] = {
    {MPI_SUM, PCOLL_SUM},   {MPI_PROD, PCOLL_PROD}, {MPI_MIN, PCOLL_MIN},
    {MPI_MAX, PCOLL_MAX},   {MPI_LAND, PCOLL_LAND}, {MPI_LOR, PCOLL_LOR},
    {MPI_LXOR, PCOLL_LXOR}, {MPI_BAND, PCOLL_BAND}, {MPI_BOR, PCOLL_BOR},
    {MPI_BXOR, PCOLL_BXOR},
};

/* Bit c: MPI allows op c of the core for this kind (MPI-4.1, section 6.9.2). */
enum {
    SUMS = 1 << PCOLL_SUM | 1 << PCOLL_PROD,
    ORDER = 1 << PCOLL_MIN | 1 << PCOLL_MAX,
    LOGIC = 1 << PCOLL_LAND | 1 << PCOLL_LOR | 1 << PCOLL_LXOR,
    BITS = 1 << PCOLL_BAND | 1 << PCOLL_BOR | 1 << PCOLL_BXOR
};
static const unsigned allowed[KINDS] = {
    [SIGNED] = SUMS | ORDER | LOGIC | BITS,
    [UNSIGNED] = SUMS | ORDER | LOGIC | BITS,
    [REAL] = SUMS | ORDER,
    [COMPLEX] = SUMS,
    [LOGICAL] = LOGIC,
    [BYTES] = BITS,
};

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
