/* SPDX-License-Identifier: BSD-3-Clause */
/* One call on emulated devices: packed, with rows of no query, an empty sequence and one without
 * keys. */
#ifndef TESTS_DEVICE_CALL_H
#define TESTS_DEVICE_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

enum { B = 3, TQ = 12, TK = 20, HQ = 2, HKV = 1, D = 8 };

struct call_tensors {
    _Alignas(64) uint16_t q[TQ * HQ * D], k[TK * HKV * D], v[TK * HKV * D], out[TQ * HQ * D];
    float lse[HQ * TQ];
};
extern struct call_tensors now;
extern int32_t cu_q[B + 1], cu_k[B + 1];

/* All of it as it is before the call, and the call. */
void call_fill(void);
attn_desc call_desc(void);

/* All tensors to device n, -1 for the host. */
void call_move(int n, int managed);

/* From then on the results that stand there are those that are expected. */
void call_expect(void);
bool call_as_expected(void);

/* All is as it was filled. */
bool call_untouched(void);

/* A call is refused with the status, in words that have `word`, and nothing is written. */
void call_expect_refused(const char *what, attn_backend backend, const attn_desc *d,
                         attn_status status, const char *word);

/* It gives the results, and leaves nothing behind. */
void call_expect_result(const char *what, attn_backend backend, const attn_desc *d);

/* The backend that would serve it, or -1. */
int call_serving(attn_backend backend, const attn_desc *d);

#endif
