/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of simulated ranks, for objects that the simulation drives one after the
 * other. Near memory is there at once. Far gets take their time, read the memory when
 * they end and not before, and do not end while their target stands still.
 */
#pragma once

#include "transport/window.h"
#include "transport/sim/sim_transport.h"

/* ranks_of_node: so many ranks with neighboring numbers are near each other.
 * stands[r]: r stands still. */
void far_windows_create(struct sim *s, uint32_t ranks, uint32_t ranks_of_node,
                        size_t bytes, const bool *stands, struct window **windows);
void far_windows_destroy(uint32_t ranks, struct window **windows);
