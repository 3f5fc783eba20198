/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions by MPI_Reduce_local. Everything that would make one fail is checked when it is
 * made: a predefined op is tried on one element of zeros, because only MPI knows which ops its
 * datatypes take.
 */
#include <stdlib.h>

#include "transport/mpi/mpi_internal.h"

/* The most elements in one call, whose count is an int. */
static const size_t most_elements = (size_t)1 << 30;

struct mpi_reduction {
    struct user_reduction base;
    MPI_Datatype type;
    MPI_Op op;
    bool owns_type, predefined;
};

MPI_Datatype mpi_type_of(int dtype)
{
    static const MPI_Datatype types[] = {
        [PCOLL_FLOAT32] = MPI_FLOAT,
        [PCOLL_FLOAT64] = MPI_DOUBLE,
        [PCOLL_INT32] = MPI_INT32_T,
        [PCOLL_INT64] = MPI_INT64_T,
        [PCOLL_FLOAT16] = MPI_DATATYPE_NULL,
        [PCOLL_BFLOAT16] = MPI_DATATYPE_NULL,
        [PCOLL_COMPLEX64] = MPI_C_FLOAT_COMPLEX,
        [PCOLL_COMPLEX128] = MPI_C_DOUBLE_COMPLEX,
        [PCOLL_INT8] = MPI_INT8_T,
        [PCOLL_INT16] = MPI_INT16_T,
        [PCOLL_UINT8] = MPI_UINT8_T,
        [PCOLL_UINT16] = MPI_UINT16_T,
        [PCOLL_UINT32] = MPI_UINT32_T,
        [PCOLL_UINT64] = MPI_UINT64_T,
        [PCOLL_BOOL] = MPI_C_BOOL,
    };
    bool known = dtype >= 0 && dtype < PCOLL_MPI_TYPE;
    return known ? types[dtype] : MPI_DATATYPE_NULL;
}

MPI_Op mpi_op_of(int op)
{
    static const MPI_Op ops[] = {
        [PCOLL_SUM] = MPI_SUM,   [PCOLL_PROD] = MPI_PROD, [PCOLL_MIN] = MPI_MIN,
        [PCOLL_MAX] = MPI_MAX,   [PCOLL_LAND] = MPI_LAND, [PCOLL_LOR] = MPI_LOR,
        [PCOLL_LXOR] = MPI_LXOR, [PCOLL_BAND] = MPI_BAND, [PCOLL_BOR] = MPI_BOR,
        [PCOLL_BXOR] = MPI_BXOR,
    };
    return op >= 0 && op < PCOLL_MPI_OP ? ops[op] : MPI_OP_NULL;
}

static int mpi_reduction_check_op(MPI_Op op, int index)
{
    int commutes = 0;
    if (op == MPI_OP_NULL)
        return fail(PCOLL_EINVAL, "op: buffer %d: expected an op, got MPI.OP_NULL",
                    index);
    if (op == MPI_REPLACE || op == MPI_NO_OP)
        return fail(PCOLL_EINVAL,
                    "op: buffer %d: expected one that reduces, got MPI.REPLACE or "
                    "MPI.NO_OP, which are for windows",
                    index);
    int rc = TRY(MPI_Op_commutative, op, &commutes);
    if (rc != PCOLL_OK || commutes)
        return rc;
    return fail(PCOLL_EINVAL,
                "op: buffer %d: expected one that was created as commutative (late "
                "contributions have no fixed place in an order), got one that was not",
                index);
}

/* A function newer than MPI 3.0, weak: NULL where the MPI that is loaded does not have it. That MPI
 * may be older or newer than the one whose header is compiled. */
int MPI_Type_get_envelope_c(MPI_Datatype type, MPI_Count *integers,
                            MPI_Count *addresses, MPI_Count *large, MPI_Count *types,
                            int *combiner) __attribute__((weak));

int mpi_layout_of(MPI_Datatype type, struct mpi_layout *layout)
{
    MPI_Count c[4], true_lb, true_extent;
    int i[3], combiner;
    /* The older call refuses types made with large counts. An MPI that makes them has the newer. */
    int error = MPI_Type_get_envelope_c
                    ? MPI_Type_get_envelope_c(type, c, c + 1, c + 2, c + 3, &combiner)
                    : MPI_Type_get_envelope(type, i, i + 1, i + 2, &combiner);
    int rc = mpi_check(error, "MPI_Type_get_envelope")
                 ?: TRY(MPI_Type_get_extent_x, type, &layout->lb, &layout->extent)
                 ?: TRY(MPI_Type_get_true_extent_x, type, &true_lb, &true_extent)
                 ?: TRY(MPI_Type_size_x, type, &layout->size);
    if (rc != PCOLL_OK)
        return rc;
    MPI_Count extent = layout->extent;
    layout->derived = combiner != MPI_COMBINER_NAMED;
    layout->gaps =
        layout->lb != 0 || true_lb != 0 || true_extent > extent ||
        (layout->derived && (extent != layout->size || true_extent != layout->size));
    return PCOLL_OK;
}

/* Ops of users run one at a time: several threads may drive handles. */
static struct lock op_of_user = LOCK_INIT(LOCK_USER_OP);

static int mpi_reduction_combine(struct user_reduction *user, void *inout,
                                 const void *left, size_t count)
{
    const struct mpi_reduction *r = (const struct mpi_reduction *)user;
    int rc = PCOLL_OK;
    if (!r->predefined)
        lock_take(&op_of_user);
    for (size_t done = 0; done < count && rc == PCOLL_OK; done += most_elements) {
        size_t now = count - done < most_elements ? count - done : most_elements;
        size_t at = done * r->base.element;
        rc = TRY(MPI_Reduce_local, (const char *)left + at, (char *)inout + at,
                 (int)now, r->type, r->op);
    }
    if (!r->predefined)
        lock_release(&op_of_user);
    return rc;
}

static void mpi_reduction_destroy(struct user_reduction *user)
{
    struct mpi_reduction *r = (struct mpi_reduction *)user;
    if (r->owns_type)
        MPI_Type_free(&r->type);
    free(r);
}

/* Try a predefined op on zeros: MPI may not define it for the datatype. */
static int mpi_reduction_try_once(struct mpi_reduction *r, int index)
{
    char *zeros = calloc(2, r->base.element);
    if (!zeros)
        return fail(PCOLL_ENOMEM, "no memory for two elements");
    int rc = mpi_reduction_combine(&r->base, zeros, zeros + r->base.element, 1);
    free(zeros);
    if (rc != PCOLL_OK)
        return fail(PCOLL_EINVAL,
                    "op: buffer %d: MPI does not define this op for this datatype",
                    index);
    return PCOLL_OK;
}

/* Check that this pair reduces, and note it. *derived: a user has made the datatype. */
static int mpi_reduction_judge(struct mpi_reduction *r, MPI_Datatype type, MPI_Op op,
                               int index, bool *derived)
{
    struct mpi_layout layout;
    int rc = mpi_reduction_check_op(op, index);
    if (rc != PCOLL_OK)
        return rc;
    if (type == MPI_DATATYPE_NULL)
        return fail(PCOLL_EINVAL,
                    "datatype: buffer %d: expected one that MPI knows, got "
                    "MPI.DATATYPE_NULL, or a dtype that MPI has none for",
                    index);
    if ((rc = mpi_layout_of(type, &layout)) != PCOLL_OK)
        return rc;
    if (layout.size < 1)
        return fail(PCOLL_EINVAL,
                    "datatype: buffer %d: expected elements of 1 byte or "
                    "more, got a datatype of size %lld",
                    index, (long long)layout.size);
    if (layout.gaps)
        return fail(PCOLL_EINVAL,
                    "datatype: buffer %d: expected one without gaps, got size %lld, "
                    "extent %lld, lower bound %lld",
                    index, (long long)layout.size, (long long)layout.extent,
                    (long long)layout.lb);
    *derived = layout.derived;
    r->base.element = (size_t)layout.extent;
    r->op = op;
    r->predefined = op == MPI_MAXLOC || op == MPI_MINLOC;
    for (int i = 0; i < PCOLL_MPI_OP; i++)
        r->predefined |= op == mpi_op_of(i);
    r->type = type;
    if (*derived && r->predefined)
        return fail(PCOLL_EINVAL,
                    "op: buffer %d: expected an op of your own for a derived datatype, "
                    "got a predefined one, which MPI does not define for it",
                    index);
    return r->predefined ? mpi_reduction_try_once(r, index) : PCOLL_OK;
}

int mpi_reduction_create(const pcoll_buffer *buffer, int index,
                         struct user_reduction **out)
{
    bool derived;
    struct mpi_reduction *r = calloc(1, sizeof *r);
    if (!r)
        return fail(PCOLL_ENOMEM, "no memory for a reduction");
    r->base = (struct user_reduction){.combine = mpi_reduction_combine,
                                      .free = mpi_reduction_destroy};
    MPI_Datatype type = mpi_type_of(buffer->dtype);
    MPI_Op op = mpi_op_of(buffer->op);
    if (buffer->dtype == PCOLL_MPI_TYPE && buffer->mpi_type)
        type = *(const MPI_Datatype *)buffer->mpi_type;
    if (buffer->op == PCOLL_MPI_OP && buffer->mpi_op)
        op = *(const MPI_Op *)buffer->mpi_op;
    int rc = mpi_reduction_judge(r, type, op, index, &derived);
    /* Keep a duplicate of a derived datatype, which its user may free. Predefined ones are used
     * directly: an op of a user may check which one it gets. */
    if (rc == PCOLL_OK && derived) {
        rc = TRY(MPI_Type_dup, r->type, &r->type);
        r->owns_type = rc == PCOLL_OK;
        rc = rc ?: TRY(MPI_Type_commit, &r->type);
    }
    if (rc != PCOLL_OK) {
        mpi_reduction_destroy(&r->base);
        return rc;
    }
    *out = &r->base;
    return PCOLL_OK;
}

int mpi_reduction_set(struct user_reduction *user, const void *mpi_type,
                      const void *mpi_op, int index)
{
    bool derived;
    struct mpi_reduction *r = (struct mpi_reduction *)user, next = {.base = *user};
    int rc = mpi_reduction_judge(&next, *(const MPI_Datatype *)mpi_type,
                                 *(const MPI_Op *)mpi_op, index, &derived);
    if (rc == PCOLL_OK && next.base.element != user->element)
        rc = fail(PCOLL_EINVAL,
                  "datatype: buffer %d: expected elements of %zu bytes, as the handle "
                  "was made for, got %zu",
                  index, user->element, next.base.element);
    if (rc != PCOLL_OK)
        return rc;
    if (r->owns_type)
        MPI_Type_free(&r->type);
    *r = next;
    return PCOLL_OK;
}
