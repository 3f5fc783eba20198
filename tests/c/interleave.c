/* SPDX-License-Identifier: Apache-2.0 */
/* What the core calls between two steps, where it is compiled for that; else unused. */
#include "base/check.h"

void (*interleave_hook)(void);
