/* SPDX-License-Identifier: Apache-2.0 */
/* An allreduce in the delete callback of an attribute of MPI_COMM_SELF, which
 * MPI_Finalize calls. Libraries clean up like this. The attribute is set before or
 * after the first allreduce. */
#include "say.h"

static int clean_up(MPI_Comm comm, int key, void *value, void *extra)
{
    int one = 1, sum = 0, same = 0;
    (void)comm, (void)key, (void)value, (void)extra;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&one, &same, 1, MPI_INT, MPI_SUM, MPI_COMM_SELF);
    CHECK(sum == size && same == 1);
    SAY("reduced\n");
    return MPI_SUCCESS;
}

static void set_attribute(void)
{
    int key;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, clean_up, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    MPI_Comm_free_keyval(&key);
}

static void reduce(MPI_Comm comm)
{
    int one = 1, sum = 0;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
}

int main(int argc, char **argv)
{
    int before;
    begin(&argc, &argv);
    before = argc > 1 && !strcmp(argv[1], "before");
    if (before)
        set_attribute();
    for (int i = 0; i < 2; i++) { /* MPI makes the first call of a partial policy */
        reduce(MPI_COMM_WORLD);
        reduce(MPI_COMM_SELF);
    }
    if (!before)
        set_attribute();
    MPI_Finalize();
    return 0;
}
