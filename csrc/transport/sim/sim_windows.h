/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows (transport/window.h) of simulated ranks, in one process and one thread. Every
 * access takes effect at once.
 *
 * The exception are parcels, if they are asked for. What a rank puts and adds into the
 * memory of another rank travels together with the change of the word that announces
 * it, after the flush. Nothing of a parcel takes effect before it is landed, and the
 * value of the word before that change is not known when the change is made.
 */
#ifndef PCOLL_TRANSPORT_SIM_SIM_WINDOWS_H
#define PCOLL_TRANSPORT_SIM_SIM_WINDOWS_H

#include "transport/window.h"

struct sim_windows;
struct sim_parcel;

/* Create windows of `bytes` for each rank. */
struct sim_windows *sim_windows_create(uint32_t ranks, size_t bytes, bool parcels);
void sim_windows_free(struct sim_windows **all);
struct window *sim_window(struct sim_windows *all, uint32_t rank);

/* Return the parcel that the rank has sent since the last call, or NULL. It has to be
 * landed once. */
struct sim_parcel *sim_windows_sent(struct sim_windows *all, uint32_t rank);
/* Let a parcel take effect; return the rank that receives it. */
uint32_t sim_windows_land(struct sim_windows *all, struct sim_parcel **parcel);

#endif
