/* SPDX-License-Identifier: Apache-2.0 */
/* Complete rounds of PCOLL_Allreduce, short and long ones. Creating a handle duplicates
 * the communicator, which calls the copy callback of an attribute. Print the number of
 * calls before that: 0, 1, "some" or "never". */
#include "../pmpi/say.h"
#include <partialcoll.h>

enum { CALLS = 100 };

static int copies;

static int copied(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm;
    (void)key;
    (void)extra;
    (void)in;
    (void)out;
    copies++;
    *flag = 0;
    return MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    static double x[1 << 18], sum[1 << 18];
    int key, count, first = 0;
    begin(&argc, &argv);
    count = atoi(argv[1]);
    MPI_Comm_create_keyval(copied, MPI_COMM_NULL_DELETE_FN, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_WORLD, key, NULL);
    for (int i = 1; i <= CALLS; i++) {
        x[0] = x[count - 1] = i;
        CHECK(!PCOLL_Allreduce(x, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
        CHECK(sum[0] == size * i && sum[count - 1] == size * i);
        if (copies && !first)
            first = i;
    }
    SAY("%s\n", !first ? "never" : first == 1 ? "at once" : "later");
    MPI_Finalize();
    return 0;
}
