/* SPDX-License-Identifier: Apache-2.0 */
/* Datatypes, ops, counts, in place and not, on several communicators: what the core
 * does, and what it leaves to MPI. Values are small integers: exact in every type. */
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

/* Integers take logical and bitwise ops as well. */
static void bits(void)
{
    const MPI_Op ops[] = {MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
    for (int o = 0; o < 6; o++) {
        int x[3] = {rank % 2, rank + 1, 12}, y[3];
        CHECK(MPI_Allreduce(x, y, 3, MPI_INT, ops[o], MPI_COMM_WORLD) == MPI_SUCCESS);
        SAY("bits %d: %d %d %d\n", o, y[0], y[1], y[2]);
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
    MPI_Comm_free(&half);
    MPI_Comm_free(&dup);
    MPI_Comm_free(&backwards);
    MPI_Finalize();
    return 0;
}
