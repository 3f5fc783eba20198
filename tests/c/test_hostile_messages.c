/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile messages to every kind of object; see hostile.h.
 * Compiled: interleaved, so that few ranks have headers in the form of many.
 *
 *   PARTIALCOLL_SEED=n       only this world
 *   PARTIALCOLL_HOSTILE=n    n messages to each kind of object (default 100000)
 *   PARTIALCOLL_OBJECT=name  only this kind
 */
#include <string.h>

#include "check.h"
#include "hostile.h"

static const struct {
    const char *name;
    void (*run)(struct hostile *h, uint64_t most);
} objects[] = {
    {"groups", hostile_groups},         {"handles", hostile_handles},
    {"schedules", hostile_schedules},   {"gossip", hostile_gossip},
    {"agreements", hostile_agreements},
};

int main(void)
{
    const char *only = getenv("PARTIALCOLL_OBJECT");
    uint64_t seed = check_setting("PARTIALCOLL_SEED", 0),
             wanted = check_setting("PARTIALCOLL_HOSTILE", 100000);
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        uint64_t messages = 0, refused = 0, done = 0, worlds = 0;
        uint64_t world = seed ? seed : 1;
        if (only && strcmp(only, objects[i].name) != 0)
            continue;
        do {
            struct hostile h = {.seed = world};
            snprintf(check_context, sizeof check_context,
                     "PARTIALCOLL_OBJECT=%s PARTIALCOLL_SEED=%llu", objects[i].name,
                     (unsigned long long)world);
            objects[i].run(&h, 500);
            hostile_end(&h);
            messages += h.messages;
            refused += h.refused;
            done += h.done < 1000 ? h.done : 0;
            worlds++;
            world++;
        } while (messages < wanted && !seed);
        printf("hostile messages: %llu to %s in %llu worlds, %llu refused, %llu rounds "
               "done: none did harm\n",
               (unsigned long long)messages, objects[i].name,
               (unsigned long long)worlds, (unsigned long long)refused,
               (unsigned long long)done);
    }
    return 0;
}
