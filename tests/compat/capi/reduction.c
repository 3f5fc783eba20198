/* SPDX-License-Identifier: Apache-2.0 */
/* pcoll_handle_set_reduction: another op between two rounds, and refusals. */
#include "handles.h"

enum { COUNT = 40 };

static void add_one_more(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *n; i++)
        ((double *)inout)[i] += ((double *)in)[i] + 1;
}

static void ignore(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)in;
    (void)inout;
    (void)n;
    (void)type;
}

static pcoll_handle *make(int32_t dtype, int32_t op, const void *mpi_type,
                          const void *mpi_op, pcoll_policy policy)
{
    pcoll_handle *handle = NULL;
    MPI_Comm world = MPI_COMM_WORLD;
    pcoll_buffer buffer = {COUNT, dtype, op, mpi_type, mpi_op};
    pcoll_options options = {
        .policy = policy, .progress = PCOLL_PROGRESS_MANUAL, .history = 1};
    CHECK(pcoll_allreduce_create(&world, &buffer, 1, &options, &handle) == PCOLL_OK);
    return handle;
}

/* Make one round of ones. Return the first element of its result. */
static double round_of(pcoll_handle *handle)
{
    double x[COUNT], y[COUNT];
    const void *send = x;
    void *recv = y;
    pcoll_round round;
    for (int i = 0; i < COUNT; i++)
        x[i] = 1;
    CHECK(pcoll_handle_start(handle, &send) == PCOLL_OK);
    while (pcoll_handle_take(handle, 1000000, &recv, &round, NULL) == PCOLL_EAGAIN)
        ;
    CHECK(y[COUNT - 1] == y[0]);
    return y[0];
}

static void changes(MPI_Op own)
{
    MPI_Datatype type = MPI_DOUBLE, real = MPI_DOUBLE, derived;
    MPI_Op ops[] = {MPI_SUM, own, MPI_MAX};
    const double expected[] = {size, 2 * size - 1, 1};
    pcoll_handle *h = make(PCOLL_MPI_TYPE, PCOLL_MPI_OP, &type, &ops[0],
                           (pcoll_policy){.kind = PCOLL_FULL});
    type = MPI_DATATYPE_NULL; /* the address is not used later */
    for (int i = 0; i < 9; i++) {
        CHECK(pcoll_handle_set_reduction(h, 0, &real, &ops[i % 3]) == PCOLL_OK);
        CHECK(round_of(h) == expected[i % 3]);
        CHECK(round_of(h) == expected[i % 3]);
    }
    MPI_Type_contiguous(1, MPI_DOUBLE, &derived);
    MPI_Type_commit(&derived);
    CHECK(pcoll_handle_set_reduction(h, 0, &derived, &own) == PCOLL_OK);
    CHECK(round_of(h) == 2 * size - 1);
    MPI_Type_free(&derived);
    end(&h);
    CHECK(!h);
}

/* The pair is checked, and the previous setting stays. */
static void bad_pairs(MPI_Op own, MPI_Op ordered)
{
    MPI_Datatype type = MPI_DOUBLE, no_type = MPI_DATATYPE_NULL, single = MPI_FLOAT;
    MPI_Datatype derived, gaps, whole = MPI_INT;
    MPI_Op sum = MPI_SUM, no_op = MPI_OP_NULL, replace = MPI_REPLACE;
    pcoll_handle *h = make(PCOLL_FLOAT64, PCOLL_MPI_OP, NULL, &own,
                           (pcoll_policy){.kind = PCOLL_FULL});
    MPI_Type_contiguous(1, MPI_DOUBLE, &derived);
    MPI_Type_create_resized(MPI_INT, 0, 8, &gaps);
    MPI_Type_commit(&derived);
    MPI_Type_commit(&gaps);
    refuse(pcoll_handle_set_reduction(h, 1, &type, &own), PCOLL_EINVAL, "buffer");
    refuse(pcoll_handle_set_reduction(h, -1, &type, &own), PCOLL_EINVAL, "buffer");
    refuse(pcoll_handle_set_reduction(h, 0, NULL, &own), PCOLL_EINVAL, "NULL");
    refuse(pcoll_handle_set_reduction(h, 0, &type, NULL), PCOLL_EINVAL, "NULL");
    refuse(pcoll_handle_set_reduction(h, 0, &no_type, &own), PCOLL_EINVAL, "NULL");
    refuse(pcoll_handle_set_reduction(h, 0, &type, &no_op), PCOLL_EINVAL, "NULL");
    refuse(pcoll_handle_set_reduction(h, 0, &type, &ordered), PCOLL_EINVAL,
           "commutative");
    refuse(pcoll_handle_set_reduction(h, 0, &type, &replace), PCOLL_EINVAL, "REPLACE");
    refuse(pcoll_handle_set_reduction(h, 0, &derived, &sum), PCOLL_EINVAL, "derived");
    refuse(pcoll_handle_set_reduction(h, 0, &gaps, &own), PCOLL_EINVAL, "gaps");
    refuse(pcoll_handle_set_reduction(h, 0, &single, &own), PCOLL_EINVAL,
           "8 bytes, as the handle was made for, got 4");
    refuse(pcoll_handle_set_reduction(h, 0, &whole, &sum), PCOLL_EINVAL, "got 4");
    CHECK(round_of(h) == 2 * size - 1);
    MPI_Type_free(&derived);
    MPI_Type_free(&gaps);
    end(&h);
}

static void bad_moments(MPI_Op own)
{
    MPI_Datatype type = MPI_DOUBLE;
    double x[COUNT] = {0};
    const void *send = x;
    pcoll_round round;
    void *recv = x;
    pcoll_handle *h =
        make(PCOLL_FLOAT64, PCOLL_SUM, NULL, NULL, (pcoll_policy){.kind = PCOLL_FULL});
    refuse(pcoll_handle_set_reduction(h, 0, &type, &own), PCOLL_ESTATE, "not made");
    end(&h);
    h = make(PCOLL_FLOAT64, PCOLL_MPI_OP, NULL, &own,
             (pcoll_policy){.kind = PCOLL_MAJORITY});
    refuse(pcoll_handle_set_reduction(h, 0, &type, &own), PCOLL_ESTATE, "quorum");
    end(&h);
    h = make(PCOLL_FLOAT64, PCOLL_MPI_OP, NULL, &own,
             (pcoll_policy){.kind = PCOLL_FULL});
    pcoll_handle_start(h, &send);
    refuse(pcoll_handle_set_reduction(h, 0, &type, &own), PCOLL_ESTATE, "between");
    while (pcoll_handle_wait(h, 1000000) == PCOLL_EAGAIN)
        ;
    refuse(pcoll_handle_set_reduction(h, 0, &type, &own), PCOLL_ESTATE, "between");
    pcoll_handle_take(h, 0, &recv, &round, NULL);
    CHECK(pcoll_handle_set_reduction(h, 0, &type, &own) == PCOLL_OK);
    CHECK(pcoll_handle_leave(h) == PCOLL_OK);
    refuse(pcoll_handle_set_reduction(h, 0, &type, &own), PCOLL_ESTATE, "between");
    end(&h);
}

/* Each handle has its own. */
static void two_handles(MPI_Op own, MPI_Op nothing)
{
    MPI_Datatype type = MPI_DOUBLE;
    pcoll_policy full = {.kind = PCOLL_FULL};
    pcoll_handle *a = make(PCOLL_FLOAT64, PCOLL_MPI_OP, NULL, &nothing, full);
    pcoll_handle *b = make(PCOLL_FLOAT64, PCOLL_MPI_OP, NULL, &nothing, full);
    CHECK(pcoll_handle_set_reduction(a, 0, &type, &own) == PCOLL_OK);
    CHECK(round_of(b) == 1 && round_of(a) == 2 * size - 1);
    end(&a);
    end(&b);
}

int main(int argc, char **argv)
{
    MPI_Op own, ordered, nothing;
    begin(&argc, &argv);
    MPI_Op_create(add_one_more, 1, &own);
    MPI_Op_create(add_one_more, 0, &ordered);
    MPI_Op_create(ignore, 1, &nothing);
    changes(own);
    bad_pairs(own, ordered);
    bad_moments(own);
    two_handles(own, nothing);
    MPI_Op_free(&nothing);
    MPI_Op_free(&ordered);
    MPI_Op_free(&own);
    SAY("fine\n");
    MPI_Finalize();
    return 0;
}
