/* SPDX-License-Identifier: Apache-2.0 */
/* See environment.h. */
#include "base/environment.h"

#include <stdlib.h>

const char *environment_get(const char *name)
{
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}
