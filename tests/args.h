/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Argument tests: sound descriptors over one set of buffers, and changes to single fields of them,
 * written as tables.
 */
#ifndef TESTS_ARGS_H
#define TESTS_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn/attn.h"

/* Sizes of the sound descriptors: padded S, and packed T with the offsets below. */
enum { B = 2, SQ = 3, SK = 5, HQ = 4, HKV = 2, D = 3, DV = 2, TQ = B * SQ, TK = B * SK };

/* Everything that the tests' descriptors point into. One object, so that one comparison shows that
 * nothing was written. */
struct buffers {
    float q[TQ * HQ * D], k[TK * HKV * D], v[TK * HKV * DV];
    float out[TQ * HQ * DV], lse[TQ * HQ], probs[B * HQ * SQ * SK];
    float dout[TQ * HQ * DV], dq[TQ * HQ * D], dk[TK * HKV * D], dv[TK * HKV * DV];
    float bias[B * HQ * SQ * SK], per_head[HQ], key_sums[HQ * TK];
    uint8_t mask[B * HQ * SQ * SK];
    int32_t cu_q[B + 1], cu_k[B + 1], used_q[B], used_k[B], docs[TK];
    int32_t pages[B * 4], pages_late[B * 4]; /* what no used token needs is nonsense */
    int32_t cu_falls[B + 1], cu_late[B + 1], cu_long[B + 1], cu_negative[B + 1];
    int64_t cu_falls64[B + 1], used_long64[B];
    int32_t used_long[B], used_negative[B];
    int32_t bias_at[B + 1], bias_falls[B + 1], bias_close[B + 1], one_bias_close[B + 1];
    uint8_t fused[TQ * HQ * 3 * D * 8];
    _Alignas(64) uint8_t workspace[1 << 16];
};
extern struct buffers buf;

enum base { PADDED, PACKED };

/* Fills buf; the outputs with bytes that no result has. */
void buffers_fill(void);

/* A sound descriptor. PADDED: [B, S, H, D], PACKED: lengths 2 and 4 for queries, 7 and 3 for keys;
 * both with an LSE. */
attn_desc sound_desc(enum base base);

/* The same for the backward pass. */
attn_desc sound_backward(enum base base);

enum kind { I32, I64, F64, PTR };

/* A value for the field at a byte offset of the descriptor; at 0 (the size) ends a list. */
struct change {
    size_t at;
    enum kind kind;
    int64_t i;
    double f;
    const void *p;
};
#define SET_I32(field, value) {offsetof(attn_desc, field), I32, (value), 0, NULL}
#define SET_I64(field, value) {offsetof(attn_desc, field), I64, (value), 0, NULL}
#define SET_F64(field, value) {offsetof(attn_desc, field), F64, 0, (value), NULL}
#define SET_PTR(field, value) {offsetof(attn_desc, field), PTR, 0, 0, (value)}

enum { MAX_CHANGES = 20 };
void change_desc(attn_desc *desc, const struct change *changes);

/* A descriptor that is wrong for any backend. */
struct wrong {
    const char *name;
    enum base base;
    attn_status status;
    const char *field; /* the message names it ... */
    const char *value; /* ... and says this; may be null */
    bool tensors;      /* wrong only where tensors are looked at: explain accepts it */
    struct change changes[MAX_CHANGES];
};

/* A sound descriptor that uses a feature. */
struct use {
    const char *field; /* a refusal's message names it */
    enum base base;
    bool cpu, eager; /* whether the backend offers it */
    attn_pass pass;
    struct change changes[MAX_CHANGES];
};

extern const struct wrong wrongs[];
extern const int wrongs_count;
extern const struct wrong feature_wrongs[];
extern const int feature_wrongs_count;
extern const struct wrong backward_wrongs[];
extern const int backward_wrongs_count;
extern const struct use uses[];
extern const int uses_count;

#endif
