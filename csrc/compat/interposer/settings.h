/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment asks of the interposer. Read once; the same on all ranks, which
 * is checked where it matters. */
#ifndef PCOLL_COMPAT_INTERPOSER_SETTINGS_H
#define PCOLL_COMPAT_INTERPOSER_SETTINGS_H

#include <stdbool.h>

#include "compat/mpi_shaped/quorum.h"

struct settings {
    struct quorum quorum; /* PARTIALCOLL_QUORUM, or full */
    int32_t algorithm;    /* PARTIALCOLL_ALGORITHM, or auto */
    int32_t domain;       /* PARTIALCOLL_DOMAIN, or the node */
    uint32_t domain_ranks;
    bool asked;          /* PARTIALCOLL_ALGORITHM or PARTIALCOLL_DOMAIN is set */
    bool all;            /* PARTIALCOLL_ALL=1: of every communicator */
    bool report;         /* PARTIALCOLL_REPORT=1 */
    char complaint[512]; /* about values that were ignored, or "" */
};

const struct settings *settings(void);

/* A line on standard error. */
void report_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
