/* SPDX-License-Identifier: Apache-2.0 */
/* The hook that the core calls between two steps if compiled for interleaving. */
#include "base/check.h"

void (*interleave_hook)(void);
