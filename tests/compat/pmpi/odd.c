/* SPDX-License-Identifier: Apache-2.0 */
/* Unusual legal calls, and errors: no elements, pairs, derived datatypes, user ops,
 * inter-communicators, error handlers, attributes, calls before and after. */
#include "say.h"

static void min_by_size(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *n; i++)
        if (abs(((int *)in)[i]) < abs(((int *)inout)[i]))
            ((int *)inout)[i] = ((int *)in)[i];
}

/* Not commutative: the rightmost value that is not zero. Associative. */
static void last(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *n; i++)
        if (!((int *)inout)[i])
            ((int *)inout)[i] = ((int *)in)[i];
}

static void add_pairs(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < 2 * *n; i++)
        ((double *)inout)[i] += ((double *)in)[i];
}

static void user_ops(void)
{
    int x[2] = {rank - 2, 10 + rank}, y[2];
    double p[4] = {rank, 1, 2, rank}, q[4];
    MPI_Op op;
    MPI_Datatype pair;
    for (int commute = 0; commute < 2; commute++) {
        MPI_Op_create(min_by_size, commute, &op);
        MPI_Allreduce(x, y, 2, MPI_INT, op, MPI_COMM_WORLD);
        SAY("user %d: %d %d\n", commute, abs(y[0]), y[1]);
        MPI_Op_free(&op);
    }
    MPI_Op_create(last, 0, &op);
    x[0] = rank < size - 1 ? rank + 1 : 0;
    MPI_Allreduce(x, y, 1, MPI_INT, op, MPI_COMM_WORLD);
    SAY("last: %d\n", y[0]);
    MPI_Op_free(&op);
    MPI_Op_create(add_pairs, 1, &op);
    MPI_Type_contiguous(2, MPI_DOUBLE, &pair);
    MPI_Type_commit(&pair);
    MPI_Allreduce(p, q, 2, pair, op, MPI_COMM_WORLD);
    SAY("pairs: %g %g %g %g\n", q[0], q[1], q[2], q[3]);
    MPI_Type_free(&pair);
    MPI_Op_free(&op);
}

static void locations(void)
{
    struct {
        double value;
        int at;
    } x = {(rank * 3) % size, rank}, y;
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
    SAY("maxloc: %g at %d\n", y.value, y.at);
}

static void no_elements(void)
{
    int untouched = 17;
    CHECK(MPI_Allreduce(&rank, &untouched, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD) ==
          MPI_SUCCESS);
    CHECK(MPI_Allreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD) ==
          MPI_SUCCESS);
    SAY("none: %d\n", untouched);
}

static void inter(void)
{
    MPI_Comm half, both;
    int x = rank + 1, y = -1;
    if (size < 2)
        return;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 3, &both);
    CHECK(MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, both) == MPI_SUCCESS);
    SAY("inter: %d\n", y);
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
}

static int handled;

static void handler(MPI_Comm *comm, int *code, ...)
{
    (void)comm;
    (void)code;
    handled++;
}

static int class_of(int code)
{
    int class;
    MPI_Error_class(code, &class);
    return class;
}

static void say_error(const char *what, int code)
{
    SAY("%s: class %s, handled %d\n", what,
        class_of(code) == MPI_ERR_COUNT    ? "count"
        : class_of(code) == MPI_ERR_OP     ? "op"
        : class_of(code) == MPI_ERR_TYPE   ? "type"
        : class_of(code) == MPI_ERR_BUFFER ? "buffer"
        : class_of(code) == MPI_SUCCESS    ? "none"
                                           : "other",
        handled);
}

/* MPICH may be compiled without argument checks, as PyPI's is, and then crashes. */
static void errors(void)
{
#ifndef OPEN_MPI
    return;
#endif
    MPI_Comm comm;
    MPI_Errhandler own;
    MPI_Datatype derived, raw;
    MPI_Op any;
    int x = 1, y = 0;
    MPI_Type_contiguous(1, MPI_INT, &derived);
    MPI_Type_commit(&derived);
    MPI_Type_contiguous(1, MPI_INT, &raw);
    MPI_Op_create(min_by_size, 1, &any);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_create_errhandler(handler, &own);
    for (int which = 0; which < 2; which++) {
        MPI_Comm_set_errhandler(comm, which ? own : MPI_ERRORS_RETURN);
        say_error("count", MPI_Allreduce(&x, &y, -1, MPI_INT, MPI_SUM, comm));
        say_error("type", MPI_Allreduce(&x, &y, 1, MPI_DATATYPE_NULL, MPI_SUM, comm));
        say_error("op", MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_OP_NULL, comm));
        say_error("op of double", MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_BAND, comm));
        say_error("derived", MPI_Allreduce(&x, &y, 1, derived, MPI_SUM, comm));
        say_error("uncommitted", MPI_Allreduce(&x, &y, 1, raw, any, comm));
        say_error("window", MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_REPLACE, comm));
        if (rank == 0) /* wrong on one rank only, which must not wait */
            say_error("one", MPI_Allreduce(&x, &y, -3, MPI_INT, MPI_SUM, comm));
        say_error("fine", MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm));
        CHECK(y == size);
    }
    MPI_Errhandler_free(&own);
    MPI_Comm_free(&comm);
    MPI_Op_free(&any);
    MPI_Type_free(&raw);
    MPI_Type_free(&derived);
}

static int copied, deleted;

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm;
    (void)key;
    (void)extra;
    *(void **)out = in;
    copied++;
    *flag = 1;
    return MPI_SUCCESS;
}

/* A callback that communicates while its communicator is being freed. */
static int delete(MPI_Comm comm, int key, void *value, void *extra)
{
    int x = 1, y;
    (void)key;
    (void)value;
    (void)extra;
    (void)comm;
    MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    deleted += y;
    return MPI_SUCCESS;
}

static int copy_of_type(MPI_Datatype type, int key, void *extra, void *in, void *out,
                        int *flag)
{
    (void)type;
    return copy(MPI_COMM_NULL, key, extra, in, out, flag);
}

/* Only the program's own calls run its callbacks. */
static void type_attributes(void)
{
    double p[2] = {rank, 1}, q[2];
    MPI_Datatype pair;
    MPI_Op op;
    int key;
    MPI_Type_create_keyval(copy_of_type, MPI_TYPE_NULL_DELETE_FN, &key, NULL);
    MPI_Type_contiguous(2, MPI_DOUBLE, &pair);
    MPI_Type_commit(&pair);
    MPI_Type_set_attr(pair, key, NULL);
    MPI_Op_create(add_pairs, 1, &op);
    for (int i = 0; i < 3; i++)
        MPI_Allreduce(p, q, 1, pair, op, MPI_COMM_SELF);
    MPI_Op_free(&op);
    MPI_Type_free(&pair);
    MPI_Type_free_keyval(&key);
    SAY("callbacks of types: %d\n", copied);
}

static void attributes(void)
{
    MPI_Comm comm, dup;
    int key, x = 1, y;
    MPI_Comm_create_keyval(copy, delete, &key, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_attr(comm, key, NULL);
    for (int i = 0; i < 3; i++)
        MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm);
    SAY("callbacks: %d %d\n", copied, deleted);
    MPI_Comm_dup(comm, &dup);
    MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, dup);
    MPI_Comm_free(&comm);
    MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, dup);
    MPI_Comm_free(&dup);
    MPI_Comm_free_keyval(&key);
    SAY("callbacks: %d %d\n", copied, deleted);
}

/* Many communicators and signatures: no resource runs out. */
static void many(void)
{
    long total = 0;
    for (int i = 0; i < 40; i++) {
        MPI_Comm comm;
        int x = i, y;
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm);
        total += y;
        MPI_Comm_free(&comm);
    }
    SAY("communicators: %ld\n", total);
    static double x[200], y[200];
    double sum = 0;
    for (int i = 0; i < 200; i++)
        x[i] = i + rank;
    for (int round = 0; round < 3; round++)
        for (int n = 1; n <= 200; n++) {
            MPI_Allreduce(x, y, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            sum += y[n - 1];
        }
    SAY("signatures: %g\n", sum);
}

/* The program's own messages of the same kind, in flight during the calls. */
static void beside_messages(void)
{
    int right = (rank + 1) % size, left = (rank + size - 1) % size, got[8], sum = 0;
    MPI_Request requests[16];
    for (int i = 0; i < 8; i++) {
        MPI_Irecv(&got[i], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                  &requests[i]);
    }
    for (int i = 0; i < 8; i++) {
        int x = i, y;
        MPI_Isend(&rank, 1, MPI_INT, right, i, MPI_COMM_WORLD, &requests[8 + i]);
        MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(y == i * size);
    }
    MPI_Waitall(16, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 8; i++)
        sum += got[i];
    CHECK(sum == 8 * left);
    SAY("messages: %d\n", sum);
}

int main(int argc, char **argv)
{
    int before = 0;
    MPI_Initialized(&before);
    begin(&argc, &argv);
    SAY("before: %d\n", before);
    no_elements();
    user_ops();
    locations();
    inter();
    errors();
    type_attributes();
    attributes();
    many();
    beside_messages();
    MPI_Finalize();
    return 0;
}
