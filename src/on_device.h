/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls around attention (batch helpers, rotary, cache, merge) whose arrays lie on a device: which
 * call is such a one, and who does its work there. */
#ifndef ATTN_ON_DEVICE_H
#define ATTN_ON_DEVICE_H

#include "backend.h"
#include "batch_rules.h"
#include "context.h"
#include "merge.h"
#include "tokens.h"

/* An array of a call's. */
struct attn_placed {
    const char *name;
    const void *data; /* null: not given */
    int64_t size;     /* bytes of an entry as the call takes it: the address is a multiple */
    bool anywhere;    /* integers that are read: host memory goes with either place */
};

/* *at = where the call works, a device or the host: where its arrays lie. Refuses those that are
 * not aligned or lie apart, and a device's memory where the context's backend works on the host's.
 * Reads no array. */
attn_status attn_find_place(const struct attn_call *call, const struct attn_placed *arrays,
                            int count, struct attn_place *at);

/* The last part of it, for tensors that are known to lie at one place; `name` is one of them. */
attn_status attn_settle_place(const struct attn_call *call, const char *name,
                              struct attn_place place, struct attn_place *at);

/* The same for tokens, whose arrays have to be read there. */
attn_status attn_settle_tokens(const struct attn_call *call, const char *name,
                               struct attn_place place, const struct attn_tokens *t,
                               struct attn_place *at);

/* What was wrong with those, as the report of a call that was the same tells it; waits for the
 * stream. */
attn_status attn_tokens_status(const struct attn_call *call, const struct attn_tokens *t,
                               struct attn_place at);

/* Whether the host may read an array of integers of a call on this device now: work that is still
 * to be done there may write managed memory. */
bool attn_is_known(const void *data, int32_t device);

/* What a report on arrays that the host cannot read is about. */
struct attn_reported {
    const char *(*array)(enum attn_array array); /* what the caller calls one */
    const char *query, *key, *memory;            /* the sides, what the report is in */
    const struct attn_axis *pages;               /* the axis that a table is of */
};

/* A call on a device. */
struct attn_device_call {
    const struct attn_settings *settings;
    struct attn_place at; /* the device's */
    struct attn_message *m;
};

/*
 * Its work, put on the context's stream without waiting for it. Everything that the host can see
 * has been checked. Arrays of integers lie on the device or the host; what they hold on the device
 * is not trusted. Returns ATTN_OK, or, with a message, ATTN_NO_DEVICE, ATTN_NO_MEMORY or
 * ATTN_DEVICE_ERROR.
 */
struct attn_device_ops {
    /* The packing, but for its total and longest length; rows, unless null, are unpadded by it. */
    attn_status (*pack)(const struct attn_device_call *c, const struct attn_kept *kept,
                        const attn_packing *packing, const struct attn_rows *rows);
    attn_status (*pad)(const struct attn_device_call *c, const struct attn_rows *rows);
    attn_status (*gather)(const struct attn_device_call *c, const struct attn_rows *rows);
    attn_status (*sum)(const struct attn_device_call *c, const struct attn_sums *sums);
    /* `rows`: how many there are at most, -1 where that is not known. */
    attn_status (*positions)(const struct attn_device_call *c, const struct attn_positions *p,
                             int64_t rows);
    /* Rows of the output that belong to no token become 0. */
    attn_status (*rotate)(const struct attn_device_call *c, const struct attn_tokens *t);
    attn_status (*append)(const struct attn_device_call *c, const struct attn_append *a);
    attn_status (*merge)(const struct attn_device_call *c, const struct attn_partials *m);
    /* Waits for the stream and tells what a rotation or an append has noted: ATTN_OK, or the status
     * and message of what was wrong. */
    attn_status (*told)(const struct attn_device_call *c, const uint64_t *report,
                        const struct attn_reported *what);
};

/* Null where no backend with a device is built in; then no memory is a device's (backends.c). */
extern const struct attn_device_ops *const attn_device_ops;

extern const struct attn_device_ops attn_cuda_device_ops;

#endif
