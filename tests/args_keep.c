/* SPDX-License-Identifier: BSD-3-Clause */
/* Wrong arguments of attn_dropout_mask(). */
#include <string.h>

#include "args.h"
#include "args_more.h"
#include "context.h"
#include "expect.h"

/* A mask, mostly in the room of the probabilities, and changes of the descriptor. */
static const struct keep_case {
    const char *name;
    attn_status status;
    const char *says;
    attn_score_output keep;
    struct change changes[4];
} cases[] = {
    {"keep.dtype f32", ATTN_INVALID_DTYPE, "keep.dtype: f32", {buf.probs, ATTN_F32, 0, 0, 0, 0},
     {{0}}},
    {"keep.dtype 9", ATTN_INVALID_ENUM, "keep.dtype: 9", {buf.probs, (attn_dtype)9, 0, 0, 0, 0},
     {{0}}},
    {"keep.data null", ATTN_INVALID_NULL, "keep.data", {NULL, ATTN_BOOL, 0, 0, 0, 0}, {{0}}},
    {"negative stride", ATTN_INVALID_STRIDE, "keep.head_stride: -15",
     {buf.probs, ATTN_BOOL, 60, -15, 5, 1}, {{0}}},
    {"keys on each other", ATTN_INVALID_OVERLAP, "keep", {buf.probs, ATTN_BOOL, 60, 15, 5, 0},
     {{0}}},
    {"one mask for all heads", ATTN_INVALID_OVERLAP, "keep", {buf.probs, ATTN_BOOL, 15, 0, 5, 1},
     {{0}}},
    {"keep overflows", ATTN_INVALID_OVERFLOW, "keep.batch_stride",
     {buf.probs, ATTN_BOOL, INT64_MAX, 15, 5, 1}, {{0}}},
    {"keep on q", ATTN_INVALID_OVERLAP, "keep", {buf.q, ATTN_BOOL, 0, 0, 0, 0}, {{0}}},
    {"keep on seqused", ATTN_INVALID_OVERLAP, "key.seqused", {buf.used_k, ATTN_BOOL, 0, 0, 0, 0},
     {SET_PTR(key.seqused.data, buf.used_k)}},
    {"keep on lse", ATTN_INVALID_OVERLAP, "lse", {buf.lse, ATTN_BOOL, 0, 0, 0, 0}, {{0}}},
    {"dropout 2", ATTN_INVALID_VALUE, "dropout: 2", {buf.probs, ATTN_BOOL, 0, 0, 0, 0},
     {SET_F64(dropout, 2)}},
    {"batch -1", ATTN_INVALID_SHAPE, "batch: -1", {buf.probs, ATTN_BOOL, 0, 0, 0, 0},
     {SET_I64(batch, -1)}},
    {"too many heads for the counter", ATTN_UNSUPPORTED, "first_sequence",
     {buf.probs, ATTN_BOOL, 0, 0, 0, 0}, {SET_I64(first_sequence, (INT64_C(1) << 30) - 1)}},
    {"first_sequence beyond all", ATTN_UNSUPPORTED, "first_sequence",
     {buf.probs, ATTN_BOOL, 0, 0, 0, 0}, {SET_I64(first_sequence, INT64_MAX)}},
    {"as many heads as the counter has", ATTN_OK, "", {buf.probs, ATTN_BOOL, 0, 0, 0, 0},
     {SET_I64(first_sequence, (INT64_C(1) << 30) - 2)}},
    {"no dropout, any first_sequence", ATTN_OK, "", {buf.probs, ATTN_BOOL, 0, 0, 0, 0},
     {SET_F64(dropout, 0), SET_I64(first_sequence, INT64_MAX)}},
    {"no tensors", ATTN_OK, "", {buf.probs, ATTN_BOOL, 0, 0, 0, 0},
     {SET_PTR(q.data, NULL), SET_PTR(k.data, NULL), SET_PTR(v.data, NULL),
      SET_PTR(out.data, NULL)}},
    {"nothing to write", ATTN_OK, "", {NULL, ATTN_BOOL, 0, 0, 0, 0}, {SET_I64(batch, 0)}},
};

static void try_case(attn_context *c, const struct keep_case *k)
{
    struct change changes[MAX_CHANGES] = {{0}};
    attn_desc d = sound_desc(PADDED);
    d.dropout = 0.5;
    memcpy(changes, k->changes, sizeof k->changes);
    change_desc(&d, changes);
    const struct buffers before = buf;
    const attn_status got = attn_dropout_mask(c, &d, &k->keep);
    EXPECT(got == k->status && strstr(attn_last_message(c), k->says), "%s: %s, \"%s\"", k->name,
           attn_status_name(got), attn_last_message(c));
    EXPECT(got == ATTN_OK || memcmp(&before, &buf, sizeof buf) == 0, "%s: something was written",
           k->name);
    buffers_fill();
}

void test_keep(void)
{
    attn_context *c = context_of(ATTN_BACKEND_AUTO);
    const attn_desc d = sound_desc(PADDED);
    const attn_score_output keep = {buf.probs, ATTN_BOOL, 0, 0, 0, 0};
    EXPECT(attn_dropout_mask(c, NULL, &keep) == ATTN_INVALID_NULL, "no descriptor");
    EXPECT(attn_dropout_mask(c, &d, NULL) == ATTN_INVALID_NULL &&
               strstr(attn_last_message(c), "keep"), "no mask: \"%s\"", attn_last_message(c));
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        try_case(n % 2 ? c : NULL, &cases[n]);
    attn_context_destroy(c);
}
