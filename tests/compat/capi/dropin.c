/* SPDX-License-Identifier: Apache-2.0 */
/* PCOLL_Allreduce as a user of the installed library calls it. */
#include <unistd.h>

#include "../pmpi/say.h"
#include <partialcoll.h>

enum { ROUNDS = 30 };

static void full(MPI_Comm comm)
{
    int me, n;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &n);
    for (int i = 0; i < ROUNDS; i++) {
        double x[4] = {me, i, 1, -me}, y[4];
        int most = me;
        CHECK(PCOLL_Allreduce(x, y, 4, MPI_DOUBLE, MPI_SUM, comm) == MPI_SUCCESS);
        CHECK(y[0] == n * (n - 1) / 2.0 && y[1] == i * n && y[2] == n && y[3] == -y[0]);
        CHECK(PCOLL_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, comm) ==
              MPI_SUCCESS);
        CHECK(most == n - 1);
        CHECK(PCOLL_Allreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS);
    }
}

static void add_doubles(void *in, void *inout, int *n, MPI_Datatype *type)
{
    int bytes;
    MPI_Type_size(*type, &bytes);
    for (int i = 0; i < *n * bytes / 8; i++)
        ((double *)inout)[i] += ((double *)in)[i];
}

static void most_of_doubles(void *in, void *inout, int *n, MPI_Datatype *type)
{
    int bytes;
    MPI_Type_size(*type, &bytes);
    for (int i = 0; i < *n * bytes / 8; i++)
        if (((double *)inout)[i] < ((double *)in)[i])
            ((double *)inout)[i] = ((double *)in)[i];
}

/* Types and ops that MPI or its user reduces. A freed op's handle is used again. */
static void foreign(MPI_Comm comm)
{
    int me, n;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &n);
    struct {
        double value;
        int at;
    } p = {me % 2, me}, q;
    long double l = me + 1, m;
    CHECK(PCOLL_Allreduce(&p, &q, 1, MPI_DOUBLE_INT, MPI_MINLOC, comm) == MPI_SUCCESS);
    CHECK(q.value == 0 && q.at == 0);
    CHECK(PCOLL_Allreduce(&l, &m, 1, MPI_LONG_DOUBLE, MPI_SUM, comm) == MPI_SUCCESS);
    CHECK(m == n * (n + 1) / 2);
    for (int i = 0; i < 12; i++) {
        double x[6] = {me, 1, 2, 3, me, i}, y[6];
        MPI_Datatype three;
        MPI_Op op;
        MPI_Type_contiguous(3, MPI_DOUBLE, &three);
        MPI_Type_commit(&three);
        MPI_Op_create(i % 2 ? add_doubles : most_of_doubles, 1, &op);
        CHECK(PCOLL_Allreduce(x, y, 2, three, op, comm) == MPI_SUCCESS);
        CHECK(y[4] == (i % 2 ? n * (n - 1) / 2 : n - 1));
        CHECK(y[5] == (i % 2 ? n * i : i));
        MPI_Op_free(&op);
        MPI_Type_free(&three);
    }
}

/* Two sums in one loop are not mixed up, and nothing is lost. Return the number of
 * rounds without some rank. */
static int partial(MPI_Comm comm)
{
    double total[2] = {0, 0}, y[2];
    int smaller = 0;
    for (int t = 0; t < ROUNDS + 2; t++) {
        double x[2] = {t < ROUNDS, t < ROUNDS ? 1000 : 0};
        if (t < ROUNDS)
            usleep((rank + t) % size * 1500u);
        else
            MPI_Barrier(MPI_COMM_WORLD);
        PCOLL_Allreduce(&x[0], &y[0], 1, MPI_DOUBLE, MPI_SUM, comm);
        PCOLL_Allreduce(&x[1], &y[1], 1, MPI_DOUBLE, MPI_SUM, comm);
        total[0] += y[0];
        total[1] += y[1];
        smaller += t < ROUNDS && y[0] < size;
    }
    CHECK(total[0] == ROUNDS * size && total[1] == ROUNDS * size * 1000.0);
    return smaller;
}

static int handled;

static void handler(MPI_Comm *comm, int *code, ...)
{
    (void)comm;
    (void)code;
    handled++;
}

static void refuse(int rc, int class, const char *text)
{
    int got;
    MPI_Error_class(rc, &got);
    CHECK(got == class);
    CHECK(strstr(pcoll_last_error(), text));
}

static void errors(MPI_Comm comm)
{
    MPI_Errhandler own;
    MPI_Comm half, both;
    MPI_Datatype gaps;
    MPI_Op ordered, own_op;
    int x = 1, y;
    MPI_Type_vector(2, 1, 2, MPI_DOUBLE, &gaps);
    MPI_Type_commit(&gaps);
    MPI_Op_create(add_doubles, 0, &ordered);
    MPI_Op_create(add_doubles, 1, &own_op);
    MPI_Comm_create_errhandler(handler, &own);
    MPI_Comm_set_errhandler(comm, own);
    MPI_Errhandler_free(&own);
    refuse(PCOLL_Allreduce(&x, &y, -1, MPI_INT, MPI_SUM, comm), MPI_ERR_COUNT, "count");
    refuse(PCOLL_Allreduce(&x, &y, 1, MPI_DATATYPE_NULL, MPI_SUM, comm), MPI_ERR_TYPE,
           "datatype");
    refuse(PCOLL_Allreduce(&x, &y, 1, MPI_INT, MPI_OP_NULL, comm), MPI_ERR_OP, "op");
    refuse(PCOLL_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_BAND, comm), MPI_ERR_OP, "pair");
    refuse(PCOLL_Allreduce(&x, &y, 1, MPI_INT, MPI_REPLACE, comm), MPI_ERR_OP, "pair");
    refuse(PCOLL_Allreduce(&x, &y, 1, MPI_INT, ordered, comm), MPI_ERR_OP,
           "commutative");
    refuse(PCOLL_Allreduce(&x, &y, 1, gaps, own_op, comm), MPI_ERR_TYPE, "gaps");
    PCOLL_Comm_set_quorum(comm, "solo");
    refuse(PCOLL_Allreduce(&x, &y, 1, MPI_INT, own_op, comm), MPI_ERR_ARG,
           "one of your own");
    PCOLL_Comm_set_quorum(comm, NULL);
    refuse(PCOLL_Allreduce(&x, &x, 1, MPI_INT, MPI_SUM, comm), MPI_ERR_BUFFER,
           "MPI_IN_PLACE");
    refuse(PCOLL_Allreduce(&x, NULL, 1, MPI_INT, MPI_SUM, comm), MPI_ERR_BUFFER,
           "buffers");
    refuse(PCOLL_Allreduce(NULL, &y, 1, MPI_INT, MPI_SUM, comm), MPI_ERR_BUFFER,
           "buffers");
    refuse(PCOLL_Comm_set_quorum(comm, "most"), MPI_ERR_ARG, "most");
    CHECK(handled == 12);
    if (size > 1) { /* different counts: an error on every rank, without waiting */
        refuse(PCOLL_Allreduce(&x, &y, 1 + (rank == 1), MPI_INT, MPI_SUM, comm),
               MPI_ERR_OTHER, "count");
        if (rank == 1) /* an invalid environment on one rank: the same */
            setenv("PARTIALCOLL_QUORUM", "nonsense", 1);
        PCOLL_Comm_set_quorum(comm, NULL); /* read it again */
        refuse(PCOLL_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm),
               rank == 1 ? MPI_ERR_ARG : MPI_ERR_OTHER, "nonsense");
        if (rank == 1)
            unsetenv("PARTIALCOLL_QUORUM");
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 3, &both);
        MPI_Comm_set_errhandler(both, MPI_ERRORS_RETURN);
        refuse(PCOLL_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, both), MPI_ERR_COMM,
               "intra");
        MPI_Comm_free(&both);
        MPI_Comm_free(&half);
    }
    /* The communicator is as usable as before. */
    CHECK(PCOLL_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS);
    CHECK(y == size);
    MPI_Op_free(&ordered);
    MPI_Op_free(&own_op);
    MPI_Type_free(&gaps);
}

int main(int argc, char **argv)
{
    int level, x = 1, y;
    MPI_Comm dup;
    CHECK(PCOLL_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    if (argc > 1) { /* requests of the environment */
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        int rc = PCOLL_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (rc != MPI_SUCCESS) {
            refuse(rc, MPI_ERR_ARG, argv[1]);
            SAY("refused\n");
        } else {
            int smaller = partial(dup);
            SAY("%s\n", smaller ? "partial" : "full");
        }
        MPI_Comm_free(&dup);
        MPI_Finalize();
        return 0;
    }
    full(MPI_COMM_WORLD);
    full(MPI_COMM_SELF);
    full(dup);
    foreign(MPI_COMM_WORLD);
    foreign(MPI_COMM_SELF);
    CHECK(!partial(dup));
    PCOLL_Comm_set_quorum(dup, "solo");
    CHECK(size == 1 || partial(dup));
    PCOLL_Comm_set_quorum(dup, NULL);
    full(dup);
    errors(dup);
    MPI_Comm_free(&dup);
    SAY("fine\n");
    MPI_Finalize();
    return 0;
}
