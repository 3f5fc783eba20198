/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an address lies: on the host, or on which device. Asked of the driver, and only
 * in a process that has opened it or has been given an array that says it is a device's.
 */
#ifndef PCOLL_DEVICE_PLACE_H
#define PCOLL_DEVICE_PLACE_H

#include <stddef.h>

enum { PLACE_HOST = -1 };

struct place {
    int device; /* its number; PLACE_HOST: the driver does not know the address */
};

/* PCOLL_ESTATE if there is no driver. */
int place_find(const void *address, struct place *place);

/* Device memory of `bytes` from there on, all of it allocated; else PCOLL_EINVAL. */
int place_check(const void *address, size_t bytes, int device);

#endif
