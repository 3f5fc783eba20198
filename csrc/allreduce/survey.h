/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is missing? A rank that waits for too long asks all others where they are; their
 * agents answer. What comes out is one sentence for people.
 */
#ifndef PCOLL_ALLREDUCE_SURVEY_H
#define PCOLL_ALLREDUCE_SURVEY_H

#include "vertex.h"

/* Driver: answer a question; take an answer. */
int survey_answer(struct vertex *v, uint32_t source);
void survey_take(struct vertex *v, const struct control *message);

/* Application: ask, collect for at most patience_us, write the sentence. */
int survey_run(struct vertex *v, int64_t patience_us, char *text, uint64_t capacity);

#endif
