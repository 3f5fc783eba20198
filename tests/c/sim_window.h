/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of simulated ranks, for objects that the simulation drives one after the other.
 * Near memory is accessed at once. A far get takes time, reads the memory when it ends, and
 * does not end while its target is suspended.
 */
#pragma once

#include "transport/window.h"
#include "transport/sim/sim_transport.h"

/* Groups of `ranks_of_node` consecutive ranks are near each other. stands[r]: r is
 * suspended. */
void far_windows_create(struct sim *s, uint32_t ranks, uint32_t ranks_of_node,
                        size_t bytes, const bool *stands, struct window **windows);
void far_windows_destroy(uint32_t ranks, struct window **windows);
