/* SPDX-License-Identifier: Apache-2.0 */
/* A program that never calls MPI. */
#include <stdio.h>

int main(void)
{
    puts("quiet");
    return 0;
}
