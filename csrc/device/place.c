/* SPDX-License-Identifier: Apache-2.0 */
/* See place.h. */
#include "device/place.h"

#include <stdint.h>

#include "base/check.h"
#include "base/error.h"
#include "device/cuda.h"

/* Which attribute of a pointer. */
enum {
    MEMORY_TYPE = 2,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    RANGE_START = 11,
    RANGE_SIZE = 12,
};
enum { TYPE_DEVICE = 2 };

struct answer {
    unsigned type, managed;
    int device;
    cuda_address start;
    size_t size;
};

/* Zeros for memory that the driver does not know. */
static int place_ask(const void *address, struct answer *a)
{
    const struct cuda *d;
    int which[] = {MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE};
    void *values[] = {&a->type, &a->managed, &a->device, &a->start, &a->size};
    int rc = cuda_get(&d);
    *a = (struct answer){.device = PLACE_HOST};
    return rc == PCOLL_OK
               ? cuda_check(d,
                            d->pointer_attributes(sizeof which / sizeof *which, which,
                                                  values, (uintptr_t)address),
                            "asking where an address lies")
               : rc;
}

int place_find(const void *address, struct place *place)
{
    struct answer a;
    int rc = place_ask(address, &a);
    if (rc == PCOLL_OK)
        *place = (struct place){
            .device = a.type == TYPE_DEVICE || a.managed ? a.device : PLACE_HOST};
    return rc;
}

int pcoll_device_of(uint64_t address, int32_t *device)
{
    struct place place;
    int rc = fail_if_null(device)
                 ?: place_find((const void *)(uintptr_t)address, &place); /* NOLINT */
    if (rc == PCOLL_OK)
        *device = place.device;
    return rc;
}

int pcoll_device_count(int32_t *devices, int32_t *driver)
{
    const struct cuda *d;
    int rc = fail_if_null(devices, driver) ?: cuda_get(&d);
    if (rc == PCOLL_OK)
        rc = cuda_check(d, d->device_count(devices), "counting the devices");
    if (rc == PCOLL_OK)
        rc = cuda_check(d, d->version(driver), "asking for the driver's version");
    return rc;
}

int pcoll_device_in_use(void)
{
    const struct cuda *d;
    return cuda_is_loaded() && cuda_get(&d) == PCOLL_OK;
}

int pcoll_device_allocation(uint64_t address, uint64_t *begin, uint64_t *bytes)
{
    struct answer a;
    int rc =
        fail_if_null(begin, bytes)
            ?: place_ask((const void *)(uintptr_t)address, &a); /* NOLINT: an address */
    if (rc == PCOLL_OK && !a.size)
        rc = fail(PCOLL_EINVAL, "memory at %#llx: it has been freed, or was none",
                  (unsigned long long)address);
    if (rc == PCOLL_OK) {
        *begin = a.start;
        *bytes = a.size;
    }
    return rc;
}

int place_check(const void *address, size_t bytes, int device)
{
    CHECK(device >= 0);
    struct answer a;
    int rc = place_ask(address, &a);
    if (rc != PCOLL_OK || !bytes)
        return rc;
    if (a.type != TYPE_DEVICE && !a.managed)
        return fail(PCOLL_EINVAL,
                    "memory of device %d at %p: it has been freed, or it was none",
                    device, address);
    if (a.device != device)
        return fail(PCOLL_EINVAL,
                    "memory at %p: expected device %d, for which this was made, got "
                    "device %d",
                    address, device, a.device);
    uintptr_t behind = (uintptr_t)address + bytes;
    return behind <= a.start + a.size
               ? PCOLL_OK
               : fail(
                     PCOLL_EINVAL,
                     "memory of device %d at %p: expected %zu bytes, %zu are allocated",
                     device, address, bytes,
                     (size_t)(a.start + a.size) - (size_t)(uintptr_t)address);
}
