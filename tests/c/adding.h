/* SPDX-License-Identifier: Apache-2.0 */
/* Macros that add one operation of each kind to a schedule. */
#pragma once

#include "user_schedule/user_schedule.h"

#define builder_send(b, memory, shape, dest, number, label, id)                        \
    builder_add(b,                                                                     \
                (struct builder_op){                                                   \
                    .kind = OP_SEND, .from = memory, .peer = dest, .tag = number},     \
                shape, label, id)
#define builder_recv(b, memory, shape, source, number, label, id)                      \
    builder_add(b,                                                                     \
                (struct builder_op){                                                   \
                    .kind = OP_RECV, .into = memory, .peer = source, .tag = number},   \
                shape, label, id)
#define builder_reduce(b, x, y, shape, label, id)                                      \
    builder_add(b, (struct builder_op){.kind = OP_REDUCE, .from = x, .into = y},       \
                shape, label, id)
#define builder_copy(b, x, y, shape, label, id)                                        \
    builder_add(b, (struct builder_op){.kind = OP_COPY, .from = x, .into = y}, shape,  \
                label, id)
#define builder_nop(b, label, id)                                                      \
    builder_add(b, (struct builder_op){.kind = OP_NOP}, NULL, label, id)
#define builder_timer(b, time, label, id)                                              \
    builder_add(b, (struct builder_op){.kind = OP_TIMER, .seconds = time}, NULL,       \
                label, id)
