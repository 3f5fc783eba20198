/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes part changes: what this rank finds out itself, and what follows for
 * matchmaking. */
#ifndef PCOLL_GROUP_MEMBERS_H
#define PCOLL_GROUP_MEMBERS_H

#include <stdint.h>

struct group;

/* The membership of a rank has changed. */
void group_wire_membership_changed(struct group *g, uint32_t rank);
/* It is silent; all are told. */
int group_wire_suspect(struct group *g, uint32_t rank);

#endif
