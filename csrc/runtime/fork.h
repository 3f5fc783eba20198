/* SPDX-License-Identifier: Apache-2.0 */
/* In a forked child nothing of ours works: its agent stayed with the parent. */
#ifndef PCOLL_RUNTIME_FORK_H
#define PCOLL_RUNTIME_FORK_H

#include <stdbool.h>

/* From now on; once. */
void process_note_forks(void);
/* Is this such a child? */
bool process_forked(void);

#endif
