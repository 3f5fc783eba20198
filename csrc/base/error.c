/* SPDX-License-Identifier: Apache-2.0 */
/* The last failure of each thread. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_message[512];
static _Thread_local char refusal[sizeof last_message];
static _Thread_local int last_mpi_error;

int fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_message, sizeof last_message, format, args);
    va_end(args);
    return code;
}

void fail_set_mpi_error(int mpi_error)
{
    last_mpi_error = mpi_error;
}

const char *pcoll_last_error(void)
{
    return last_message;
}

void pcoll_refuse(const char *why)
{
    snprintf(refusal, sizeof refusal, "%s", why);
}

void fail_reason(struct reason *reason)
{
    snprintf(reason->text, sizeof reason->text, "%s",
             refusal[0] ? refusal : last_message);
    refusal[0] = '\0';
}

int pcoll_last_mpi_error(void)
{
    return last_mpi_error;
}
