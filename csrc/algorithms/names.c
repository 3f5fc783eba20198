/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithms by name. */
#include "algorithms/algorithms.h"

#include <string.h>

#include "base/error.h"

const char *const algorithm_names[] = {
    [PCOLL_ALGORITHM_AUTO] = "auto",
    [PCOLL_ALGORITHM_RECDBL] = "recdbl",
    [PCOLL_ALGORITHM_RABENSEIFNER] = "rabenseifner",
    [PCOLL_ALGORITHM_RING] = "ring",
    [PCOLL_ALGORITHM_NATIVE] = "native",
    NULL,
};

int algorithm_by_name(const char *name)
{
    for (int i = 0; algorithm_names[i]; i++)
        if (!strcmp(name, algorithm_names[i]))
            return i;
    return -1;
}

int pcoll_algorithm_parse(const char *text, int32_t *algorithm)
{
    int rc = fail_if_null(text, algorithm);
    if (rc != PCOLL_OK)
        return rc;
    int found = algorithm_by_name(text);
    if (found < 0)
        return fail(PCOLL_EINVAL,
                    "algorithm: expected auto, recdbl, rabenseifner, ring or native, "
                    "got \"%.50s\"",
                    text);
    *algorithm = found;
    return PCOLL_OK;
}
