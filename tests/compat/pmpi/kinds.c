/* SPDX-License-Identifier: Apache-2.0 */
/* Datatypes, ops, counts, in place and not, on several communicators: reduced by the
 * core, by MPI or user functions, or left to MPI. Values are small integers, exact in
 * every type. */
#include "say.h"

enum { MOST = 1100 };
static char in[MOST * 32], out[MOST * 32], again[MOST * 32];

/* Element i of rank r: 0 to 3, so that products stay small. */
static int value(int r, int i)
{
    return (r * 7 + i * 5) % 3 + 1;
}

#define FILL(type)                                                                     \
    for (int i = 0; i < count; i++)                                                    \
    ((type *)data)[i] = (type)value(me, i)

static void fill(void *data, MPI_Datatype type, int bytes, int is_float, int count,
                 int me)
{
    if (is_float && bytes == 4)
        FILL(float);
    else if (is_float && bytes == 8)
        FILL(double);
    else if (is_float)
        FILL(long double);
    else if (bytes == 1)
        FILL(signed char);
    else if (bytes == 2)
        FILL(short);
    else if (bytes == 4)
        FILL(int);
    else
        FILL(long long);
    (void)type;
}

struct named {
    const char *name;
    MPI_Datatype type;
    int is_float;
};

static void one(const struct named *t, MPI_Op op, int count, MPI_Comm comm)
{
    int me, bytes;
    MPI_Comm_rank(comm, &me);
    MPI_Type_size(t->type, &bytes);
    memset(in, 0, sizeof in);
    memset(out, 0x5a, sizeof out);
    fill(in, t->type, bytes, t->is_float, count, me);
    memcpy(again, in, sizeof in);
    CHECK(MPI_Allreduce(in, out, count, t->type, op, comm) == MPI_SUCCESS);
    CHECK(!memcmp(again, in, sizeof in));
    CHECK(out[(size_t)count * (size_t)bytes] == 0x5a); /* nothing beyond the end */
    CHECK(MPI_Allreduce(MPI_IN_PLACE, again, count, t->type, op, comm) == MPI_SUCCESS);
    if (t->is_float < 2) /* long double has padding */
        CHECK(!memcmp(again, out, (size_t)count * (size_t)bytes));
}

static void all_pairs(const char *where, MPI_Comm comm)
{
    const struct named types[] = {
        {"double", MPI_DOUBLE, 1},
        {"float", MPI_FLOAT, 1},
        {"int", MPI_INT, 0},
        {"long", MPI_LONG, 0},
        {"llong", MPI_LONG_LONG, 0},
        {"int64", MPI_INT64_T, 0},
        {"int32", MPI_INT32_T, 0},
        {"short", MPI_SHORT, 0},
        {"schar", MPI_SIGNED_CHAR, 0},
        {"unsigned", MPI_UNSIGNED, 0},
        {"ulong", MPI_UNSIGNED_LONG, 0},
        {"uint8", MPI_UINT8_T, 0},
        {"uint16", MPI_UINT16_T, 0},
        {"aint", MPI_AINT, 0},
        {"ldouble", MPI_LONG_DOUBLE, 2},
    };
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX};
    const int counts[] = {1, 7, 1025};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int o = 0; o < 4; o++) {
            unsigned long h = 0;
            for (int c = 0; c < 3; c++) {
                int bytes;
                one(&types[t], ops[o], counts[c], comm);
                MPI_Type_size(types[t].type, &bytes);
                if (types[t].is_float < 2)
                    h = h * 31 + sum_of(out, (size_t)counts[c] * (size_t)bytes);
            }
            SAY("%s %s %d %lx\n", where, types[t].name, o, h);
        }
}

/* Integers have logical and bitwise ops as well. */
static void bits(void)
{
    const MPI_Op ops[] = {MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
    for (int o = 0; o < 6; o++) {
        int x[3] = {rank % 2, rank + 1, 12}, y[3];
        CHECK(MPI_Allreduce(x, y, 3, MPI_INT, ops[o], MPI_COMM_WORLD) == MPI_SUCCESS);
        SAY("bits %d: %d %d %d\n", o, y[0], y[1], y[2]);
    }
}

/* The ops that MPI defines for each datatype; others are refused as by MPI. */
static void refusals(MPI_Comm comm)
{
    const MPI_Datatype types[] = {MPI_INT,
                                  MPI_UNSIGNED_SHORT,
                                  MPI_DOUBLE,
                                  MPI_AINT,
                                  MPI_OFFSET,
                                  MPI_COUNT,
                                  MPI_INTEGER,
                                  MPI_INTEGER2,
                                  MPI_INTEGER8,
                                  MPI_REAL,
                                  MPI_DOUBLE_PRECISION,
                                  MPI_C_BOOL,
                                  MPI_LOGICAL,
                                  MPI_BYTE,
                                  MPI_CHAR,
                                  MPI_WCHAR,
                                  MPI_COMPLEX,
                                  MPI_C_DOUBLE_COMPLEX,
                                  MPI_LONG_DOUBLE,
                                  MPI_2INT,
                                  MPI_DOUBLE_INT,
                                  MPI_2INTEGER,
                                  MPI_CHARACTER};
    const MPI_Op ops[] = {MPI_SUM,  MPI_PROD,   MPI_MIN,    MPI_MAX,
                          MPI_LAND, MPI_LOR,    MPI_LXOR,   MPI_BAND,
                          MPI_BOR,  MPI_MAXLOC, MPI_MINLOC, MPI_NO_OP};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
            char x[64] = {0}, y[64] = {0};
            int rc = MPI_Allreduce(x, y, 1, types[t], ops[o], comm), kind;
            MPI_Error_class(rc, &kind);
            SAY("refusals %zu %zu: %d %d\n", t, o, kind, kind == MPI_ERR_OP);
        }
}

static void wraps(void)
{
    int x = 2147483647, y;
    float f = 1.0f / (1 << rank), g;
    MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&f, &g, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    SAY("wraps %d %a\n", y, (double)g);
}

/* Types that only MPI reduces. */
static void of_mpi_alone(MPI_Comm comm)
{
    int me;
    MPI_Comm_rank(comm, &me);
    for (int count = 1; count < 1100; count = count * 5 + 2) {
        struct {
            double value;
            int at;
        } *x = calloc((size_t)count, sizeof *x), *y = calloc((size_t)count, sizeof *y);
        long double *l = calloc((size_t)count, sizeof *l);
        for (int i = 0; i < count; i++) {
            x[i].value = value(me, i);
            x[i].at = me;
            l[i] = value(me, i);
        }
        CHECK(MPI_Allreduce(x, y, count, MPI_DOUBLE_INT, MPI_MINLOC, comm) ==
              MPI_SUCCESS);
        SAY("minloc %g %d %g %d\n", y[0].value, y[0].at, y[count - 1].value,
            y[count - 1].at);
        MPI_Allreduce(x, y, count, MPI_DOUBLE_INT, MPI_MAXLOC, comm);
        SAY("maxloc %g %d %g %d\n", y[0].value, y[0].at, y[count - 1].value,
            y[count - 1].at);
        MPI_Allreduce(MPI_IN_PLACE, l, count, MPI_LONG_DOUBLE, MPI_PROD, comm);
        SAY("long double %Lg %Lg\n", l[0], l[count - 1]);
        free(x);
        free(y);
        free(l);
    }
    int truth[2] = {me == 1, 0}, any[2] = {7, 7};
    MPI_Allreduce(truth, any, 2, MPI_LOGICAL, MPI_LOR, comm); /* 4 bytes, in all MPIs */
    SAY("logical %d %d\n", any[0] != 0, any[1] != 0);
    double _Complex z[3] = {1, me}, w[3];
    long double _Complex v[2] = {me, 1}, u[2];
    MPI_Allreduce(z, w, 3, MPI_C_DOUBLE_COMPLEX, MPI_SUM, comm);
    MPI_Allreduce(v, u, 2, MPI_C_LONG_DOUBLE_COMPLEX, MPI_SUM, comm);
    SAY("complex %g %g %Lg %Lg\n", __real__ w[0], __real__ w[1], __real__ u[0],
        __real__ u[1]);
}

/* User ops. Each inspects its datatype, which is allowed. */

static int bytes_of(MPI_Datatype *type)
{
    int bytes;
    MPI_Type_size(*type, &bytes);
    return bytes;
}

#define OF_DOUBLES(name, expression)                                                   \
    static void name(void *in, void *inout, int *n, MPI_Datatype *type)                \
    {                                                                                  \
        double *a = in, *b = inout;                                                    \
        int all = *n * bytes_of(type) / (int)sizeof *a;                                \
        for (int i = 0; i < all; i++)                                                  \
            b[i] = expression;                                                         \
    }
OF_DOUBLES(add, a[i] + b[i])
OF_DOUBLES(add_one, a[i] + b[i] + 1)
OF_DOUBLES(largest, a[i] > b[i] ? a[i] : b[i])
OF_DOUBLES(smallest, a[i] < b[i] ? a[i] : b[i])
OF_DOUBLES(right, b[i] == 0 ? a[i] : b[i]) /* does not commute */

static MPI_User_function *const functions[] = {add, largest, add_one, smallest};

/* One value is a vector of 3 doubles. The result is the one with the greater sum, or
 * the lower rank if equal (the third element is the rank). */
static void longest(void *in, void *inout, int *n, MPI_Datatype *type)
{
    double *a = in, *b = inout;
    CHECK(bytes_of(type) == 24);
    for (int i = 0; i < *n; i++, a += 3, b += 3)
        if (a[0] + a[1] > b[0] + b[1] || (a[0] + a[1] == b[0] + b[1] && a[2] < b[2]))
            memcpy(b, a, 24);
}

/* A datatype and an op for one call. Their handles are reused for other functions. */
static void one_of_user(int which, int width, int count, MPI_Comm comm)
{
    int me, n = width * count;
    double *x = calloc((size_t)n, 8), *y = calloc((size_t)n, 8), sum = 0;
    MPI_Datatype type;
    MPI_Op op;
    MPI_Comm_rank(comm, &me);
    for (int i = 0; i < n; i++)
        x[i] = value(me, i);
    MPI_Type_contiguous(width, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(functions[which], 1, &op);
    CHECK(MPI_Allreduce(x, y, count, type, op, comm) == MPI_SUCCESS);
    CHECK(MPI_Allreduce(MPI_IN_PLACE, x, count, type, op, comm) == MPI_SUCCESS);
    CHECK(!memcmp(x, y, (size_t)n * 8));
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    for (int i = 0; i < n; i++)
        sum = sum * 3 / 2 + y[i];
    SAY("user %d, %d x %d: %a\n", which, count, width, sum);
    free(x);
    free(y);
}

static void users(MPI_Comm comm)
{
    const int counts[] = {1, 5, 700};
    for (int round = 0; round < 3; round++)
        for (int c = 0; c < 3; c++)
            for (int which = 0; which < 4; which++)
                for (int width = 1; width < 4; width++)
                    one_of_user(which, width, counts[c], comm);
}

/* Several live at once, on predefined and derived datatypes of the same size. */
static void users_together(MPI_Comm comm)
{
    double x[6] = {rank, 2, rank % 3, 4, rank, rank}, y[6];
    MPI_Op ops[4], vectors;
    MPI_Datatype three, again;
    MPI_Type_contiguous(3, MPI_DOUBLE, &three);
    MPI_Type_commit(&three);
    MPI_Type_dup(three, &again);
    MPI_Op_create(longest, 1, &vectors);
    for (int i = 0; i < 4; i++)
        MPI_Op_create(functions[i], 1, &ops[i]);
    for (int i = 0; i < 12; i++) {
        MPI_Allreduce(x, y, 2, i % 2 ? three : again, ops[i % 4], comm);
        SAY("together %g %g %g\n", y[0], y[2], y[5]);
        MPI_Allreduce(x, y, 2, three, vectors, comm);
        SAY("longest %g %g %g\n", y[0], y[2], y[5]);
        MPI_Allreduce(x, y, 3, MPI_DOUBLE, ops[i % 4], comm);
        MPI_Allreduce(x + 1, y + 1, 1, MPI_INT64_T, MPI_BOR, comm);
        SAY("predefined %g %g %g\n", y[0], y[1], y[2]);
    }
    for (int i = 0; i < 4; i++)
        MPI_Op_free(&ops[i]);
    MPI_Op_free(&vectors);
    MPI_Type_free(&again);
    MPI_Type_free(&three);
}

/* MPI reduces in the order of ranks, and leaves data in gaps unchanged. */
static void left_to_mpi(void)
{
    double x[4] = {rank == size - 1 ? 0 : rank + 1, 1, 2, 3}, y[4] = {0, 7, 0, 7};
    MPI_Datatype gaps, resized;
    MPI_Op op;
    MPI_Op_create(right, 0, &op);
    for (int i = 0; i < 3; i++)
        MPI_Allreduce(x, y, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
    MPI_Op_free(&op);
    MPI_Op_create(largest, 1, &op);
    MPI_Type_create_resized(MPI_DOUBLE, 0, 16, &resized);
    MPI_Type_dup(resized, &gaps);
    MPI_Type_commit(&gaps);
    MPI_Allreduce(x, y + 2, 1, gaps, op, MPI_COMM_WORLD);
    SAY("passed: %g %g %g %g\n", y[0], y[1], y[2], y[3]);
    MPI_Type_free(&gaps);
    MPI_Type_free(&resized);
    MPI_Op_free(&op);
}

int main(int argc, char **argv)
{
    MPI_Comm dup, half, backwards;
    begin(&argc, &argv);
    all_pairs("world", MPI_COMM_WORLD);
    all_pairs("self", MPI_COMM_SELF);
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards);
    all_pairs("half", half);
    one(&(struct named){"int", MPI_INT, 0}, MPI_SUM, 9, backwards);
    one(&(struct named){"int", MPI_INT, 0}, MPI_SUM, 9, dup);
    bits();
    wraps();
    of_mpi_alone(MPI_COMM_WORLD);
    of_mpi_alone(half);
    users(MPI_COMM_WORLD);
    users(half);
    users_together(backwards);
    users_together(MPI_COMM_WORLD);
    left_to_mpi();
    MPI_Comm_set_errhandler(dup, MPI_ERRORS_RETURN);
    refusals(dup);
    MPI_Comm_free(&half);
    MPI_Comm_free(&dup);
    MPI_Comm_free(&backwards);
    MPI_Finalize();
    return 0;
}
