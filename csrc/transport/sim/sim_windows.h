/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of simulated ranks, all in one process and one thread, near each other: what
 * is read is what is there now, and what is written is there at once.
 *
 * But for parcels, if they are asked for. What a rank puts and adds into the memory of
 * another, and the change of a word after the flush, which tells of it, travel
 * together: nothing of them is there before somebody lands them. What such a word was
 * before is not known then.
 */
#ifndef PCOLL_TRANSPORT_SIM_SIM_WINDOWS_H
#define PCOLL_TRANSPORT_SIM_SIM_WINDOWS_H

#include "transport/window.h"

struct sim_windows;
struct sim_parcel;

/* Of so many bytes for each rank. */
struct sim_windows *sim_windows_create(uint32_t ranks, size_t bytes, bool parcels);
void sim_windows_free(struct sim_windows **all);
struct window *sim_window(struct sim_windows *all, uint32_t rank);

/* What the rank has sent since it was last asked, or NULL; to be landed once. */
struct sim_parcel *sim_windows_sent(struct sim_windows *all, uint32_t rank);
/* It is there; at whom. */
uint32_t sim_windows_land(struct sim_windows *all, struct sim_parcel **parcel);

#endif
