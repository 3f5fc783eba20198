/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory can still be taken. To take more would not fail: it would get somebody
 * killed, this process or another one of its container or batch job.
 */
#ifndef PCOLL_BASE_MEMORY_LEFT_H
#define PCOLL_BASE_MEMORY_LEFT_H

#include <stdint.h>

/* Bytes, of the machine and of the control groups that this process is in. */
uint64_t memory_left(void);

/* Of control groups alone, in both versions: `groups` is a file like /proc/self/cgroup, and
 * their files lie below `mount`. UINT64_MAX: there is no limit. */
uint64_t memory_left_in_groups(const char *groups, const char *mount);

#endif
