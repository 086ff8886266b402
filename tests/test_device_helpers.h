/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of the suite device-helpers. */
#ifndef TESTS_TEST_DEVICE_HELPERS_H
#define TESTS_TEST_DEVICE_HELPERS_H

#include "attn/attn.h"

attn_dtype draw_real_type(void);

/* Random cases: device_batch.c. */
void test_from_mask(int64_t seed);
void test_from_lengths(int64_t seed);
void test_unpad(int64_t seed);
void test_pad(int64_t seed);
void test_pad_anyhow(int64_t seed);
void test_gather(int64_t seed);
void test_gather_backward(int64_t seed);
void test_backward_anyhow(int64_t seed);
void test_positions(int64_t seed);

/* device_blocks.c */
void test_rotary(int64_t seed);
void test_append(int64_t seed);
void test_wide_cache(void);
void test_merge(int64_t seed);

/* device_garbage.c */
void test_garbage(int64_t seed);

/* device_places.c */
void test_places(void);

#endif
