/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a schedule: freed by its user, or by MPI_Finalize (user_object.h). */
#include <stdlib.h>

#include "user_schedule/object.h"
#include "base/check.h"

static int close_run(struct user_object *o)
{
    CHECK(((pcoll_schedule *)o)->run);
    return schedule_run_close(((pcoll_schedule *)o)->run);
}

static void dispose(struct user_object *o, bool healthy)
{
    pcoll_schedule *s = (pcoll_schedule *)o;
    if (healthy)
        schedule_run_destroy(&s->run);
    s->run = NULL;
}

const struct user_object_kind schedule_kind = {
    .name = "the schedule",
    .plural = "schedules",
    .close = close_run,
    .dispose = dispose,
};

int pcoll_schedule_free_begin(pcoll_schedule *s)
{
    return s ? user_object_close(&s->base) : PCOLL_OK;
}

int pcoll_schedule_free(pcoll_schedule **at, int64_t timeout_us)
{
    pcoll_schedule *s = *at;
    bool over = true;
    int rc = s ? user_object_end(&s->base, timeout_us, &over) : PCOLL_OK;
    if (over && s) {
        builder_destroy(&s->builder);
        free(s);
        *at = NULL;
    }
    return rc;
}
