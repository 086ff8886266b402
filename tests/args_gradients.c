/* SPDX-License-Identifier: BSD-3-Clause */
/* What is wrong with calls of the backward pass, and what they do not look at. */
#include <math.h>
#include <string.h>

#include "args.h"
#include "args_more.h"
#include "context.h"
#include "expect.h"

#define DLSE SET_PTR(dlse.data, buf.probs)
#define BIAS SET_PTR(bias.data, buf.bias), SET_I64(bias.key_stride, 1)
#define DBIAS BIAS, SET_PTR(dbias.data, buf.key_sums), SET_I64(dbias.key_stride, 1)
#define AT_OFFSETS \
    SET_PTR(bias.data, buf.bias), SET_PTR(bias_offset.data, buf.bias_at), \
        SET_PTR(dbias.data, buf.workspace)
#define SINK SET_PTR(sink.data, buf.per_head), SET_PTR(dsink.data, buf.key_sums)

const struct wrong backward_wrongs[] = {
    /* Pointers. */
    {"dout null", PADDED, ATTN_INVALID_NULL, "dout", NULL, true, {SET_PTR(dout.data, NULL)}},
    {"out null", PACKED, ATTN_INVALID_NULL, "out", NULL, true, {SET_PTR(out.data, NULL)}},
    {"lse null", PADDED, ATTN_INVALID_NULL, "lse", NULL, true, {SET_PTR(lse.data, NULL)}},
    {"dq null", PADDED, ATTN_INVALID_NULL, "dq", NULL, true, {SET_PTR(dq.data, NULL)}},
    {"dk null", PACKED, ATTN_INVALID_NULL, "dk", NULL, true, {SET_PTR(dk.data, NULL)}},
    {"dv null", PADDED, ATTN_INVALID_NULL, "dv", NULL, true, {SET_PTR(dv.data, NULL)}},
    {"dbias without bias", PADDED, ATTN_INVALID_CONFLICT, "bias.data", "dbias", false,
     {SET_PTR(dbias.data, buf.key_sums)}},
    {"dsink without sink", PADDED, ATTN_INVALID_CONFLICT, "sink.data", "dsink", false,
     {SET_PTR(dsink.data, buf.key_sums)}},

    /* Element types. */
    {"dout.dtype 77", PADDED, ATTN_INVALID_ENUM, "dout.dtype", "77", false,
     {SET_I32(dout.dtype, 77)}},
    {"dbias.dtype 9", PADDED, ATTN_INVALID_ENUM, "dbias.dtype", "9", false,
     {DBIAS, SET_I32(dbias.dtype, 9)}},
    {"dout.dtype", PADDED, ATTN_INVALID_DTYPE, "dout.dtype", "f64", false,
     {SET_I32(dout.dtype, ATTN_F64)}},
    {"dq.dtype", PACKED, ATTN_INVALID_DTYPE, "dq.dtype", "bf16", false,
     {SET_I32(dq.dtype, ATTN_BF16)}},
    {"dk.dtype", PADDED, ATTN_INVALID_DTYPE, "dk.dtype", "f16", false,
     {SET_I32(dk.dtype, ATTN_F16)}},
    {"dv.dtype", PADDED, ATTN_INVALID_DTYPE, "dv.dtype", "f64", false,
     {SET_I32(dv.dtype, ATTN_F64)}},
    {"dlse.dtype", PADDED, ATTN_INVALID_DTYPE, "dlse.dtype", "f64", false,
     {DLSE, SET_I32(dlse.dtype, ATTN_F64)}},
    {"dbias.dtype", PADDED, ATTN_INVALID_DTYPE, "dbias.dtype", "f64", false,
     {DBIAS, SET_I32(dbias.dtype, ATTN_F64)}},
    {"dsink.dtype", PACKED, ATTN_INVALID_DTYPE, "dsink.dtype", "bf16", false,
     {SINK, SET_I32(dsink.dtype, ATTN_BF16)}},

    /* Strides and addresses. */
    {"dout.token_stride < 0", PADDED, ATTN_INVALID_STRIDE, "dout.token_stride", "-8", false,
     {SET_I64(dout.batch_stride, 24), SET_I64(dout.token_stride, -8),
      SET_I64(dout.head_stride, DV)}},
    {"dk.head_stride < 0", PACKED, ATTN_INVALID_STRIDE, "dk.head_stride", "-3", false,
     {SET_I64(dk.token_stride, HKV * D), SET_I64(dk.head_stride, -3)}},
    {"dbias.query_stride < 0", PADDED, ATTN_INVALID_STRIDE, "dbias.query_stride", "-5", false,
     {DBIAS, SET_I64(dbias.query_stride, -5)}},
    {"dq misaligned", PADDED, ATTN_INVALID_STRIDE, "dq", NULL, false,
     {SET_PTR(dq.data, (char *)buf.dq + 2)}},
    {"dlse misaligned", PADDED, ATTN_INVALID_STRIDE, "dlse", NULL, false,
     {SET_PTR(dlse.data, (char *)buf.probs + 1)}},
    {"dsink.token_stride", PADDED, ATTN_INVALID_CONFLICT, "dsink.token_stride", "2", false,
     {SINK, SET_I64(dsink.token_stride, 2)}},
    {"dsink.batch_stride", PADDED, ATTN_INVALID_CONFLICT, "dsink.batch_stride", "4", false,
     {SINK, SET_I64(dsink.batch_stride, 4)}},
    {"dbias.batch_stride with offsets", PACKED, ATTN_INVALID_CONFLICT, "dbias.batch_stride", "40",
     false, {AT_OFFSETS, SET_I64(dbias.batch_stride, 40)}},
    {"dbias.head_stride with offsets", PACKED, ATTN_INVALID_CONFLICT, "dbias.head_stride", "14",
     false, {AT_OFFSETS, SET_I64(dbias.head_stride, 14)}},
    {"dbias.query_stride with offsets", PACKED, ATTN_INVALID_CONFLICT, "dbias.query_stride", "7",
     false, {AT_OFFSETS, SET_I64(dbias.query_stride, 7)}},
    {"dbias.key_stride with offsets", PACKED, ATTN_INVALID_CONFLICT, "dbias.key_stride", "1",
     false, {AT_OFFSETS, SET_I64(dbias.key_stride, 1)}},
    {"dbias for one head, bias for each", PACKED, ATTN_INVALID_CONFLICT, "dbias.head_stride", "-1",
     false, {AT_OFFSETS, SET_I64(dbias.head_stride, ATTN_BROADCAST)}},

    /* Overlap. */
    {"dq on q", PADDED, ATTN_INVALID_OVERLAP, "dq", "q", true, {SET_PTR(dq.data, buf.q)}},
    {"dk on k", PACKED, ATTN_INVALID_OVERLAP, "dk", "k", true, {SET_PTR(dk.data, buf.k)}},
    {"dk on dv", PADDED, ATTN_INVALID_OVERLAP, "dv", "dk", true, {SET_PTR(dk.data, buf.dv)}},
    {"dq on the last of dout", PADDED, ATTN_INVALID_OVERLAP, "dq", "dout", true,
     {SET_PTR(dq.data, buf.dout + TQ * HQ * DV - 1)}},
    {"dv on out", PADDED, ATTN_INVALID_OVERLAP, "dv", "out", true, {SET_PTR(dv.data, buf.out)}},
    {"dv on lse", PADDED, ATTN_INVALID_OVERLAP, "dv", "lse", true, {SET_PTR(dv.data, buf.lse)}},
    {"dq on dlse", PADDED, ATTN_INVALID_OVERLAP, "dq", "dlse", true,
     {SET_PTR(dlse.data, buf.dq + 3)}},
    {"dbias on bias", PADDED, ATTN_INVALID_OVERLAP, "dbias", "bias", true,
     {DBIAS, SET_PTR(dbias.data, buf.bias)}},
    {"dsink on sink", PADDED, ATTN_INVALID_OVERLAP, "dsink", "sink", true,
     {SINK, SET_PTR(dsink.data, buf.per_head)}},
    {"dsink on dq", PADDED, ATTN_INVALID_OVERLAP, "dsink", "dq", true,
     {SINK, SET_PTR(dsink.data, buf.dq)}},
    {"dq's heads on each other", PADDED, ATTN_INVALID_OVERLAP, "dq", NULL, true,
     {SET_I64(dq.batch_stride, SQ * HQ * D), SET_I64(dq.token_stride, HQ * D),
      SET_I64(dq.head_stride, ATTN_BROADCAST)}},
    {"dk's tokens on each other", PACKED, ATTN_INVALID_OVERLAP, "dk", NULL, true,
     {SET_I64(dk.token_stride, HKV * D - 1), SET_I64(dk.head_stride, D)}},
    {"dbias' queries on each other", PADDED, ATTN_INVALID_OVERLAP, "dbias", NULL, true,
     {DBIAS, SET_I64(dbias.query_stride, SK - 1)}},
    {"dsink's heads on each other", PADDED, ATTN_INVALID_OVERLAP, "dsink", NULL, true,
     {SINK, SET_I64(dsink.head_stride, ATTN_BROADCAST)}},
};
const int backward_wrongs_count = (int)(sizeof backward_wrongs / sizeof *backward_wrongs);

static attn_status backward(attn_context *c, const struct change *changes)
{
    attn_desc d = sound_backward(PADDED);
    change_desc(&d, changes);
    return attn_backward(c, &d);
}

/* Further outputs of the forward call may be anything, even nonsense; keys in pages are refused. */
static void test_backend(attn_backend backend)
{
    static const struct change none[1] = {{0}};
    static const struct change further[] = {
        SET_PTR(probs.data, buf.dq), SET_I32(probs.dtype, 99), SET_I64(probs.key_stride, -9),
        SET_PTR(key_sums.data, buf.q), SET_I32(key_sums.dtype, ATTN_BOOL), {0}};
    static const struct change paged[] = {
        SET_I32(key.layout, ATTN_PAGED), SET_I64(key.seqlen, 0), SET_I64(key.pages, 5),
        SET_I64(key.page_size, 2), SET_I64(key.max_pages, 4),
        SET_PTR(key.block_table.data, buf.pages), SET_PTR(key.seqused.data, buf.used_k), {0}};
    const char *name = attn_backend_name(backend);
    attn_context *c = context_of(backend);
    const attn_status plain = backward(c, none);

    if (plain != ATTN_OK) {
        report_skip("gradients of backend %s: %s", name, attn_last_message(c));
    } else {
        EXPECT(backward(c, further) == ATTN_OK, "%s: further outputs of a backward call: %s", name,
               attn_last_message(c));
        const attn_status status = backward(c, paged);
        EXPECT(status == ATTN_UNSUPPORTED && strstr(attn_last_message(c), "block_table"),
               "%s: gradients of keys in pages: %s, \"%s\"", name, attn_status_name(status),
               attn_last_message(c));
    }
    buffers_fill();
    attn_context_destroy(c);
}

/* Every query sees one key, and a sink as large as its score. dout is 0 and dlse 1, so that each
 * row gives half of 1 to its sink and the rest to dbias. */
static void test_known(attn_backend backend)
{
    float lse[TQ * HQ], dlse[TQ * HQ], sink[HQ], dsink[HQ], bias = 0, dbias = 0, nothing[2000];
    attn_context *c = context_of(backend);
    attn_desc d = sound_backward(PADDED);

    memset(nothing, 0, sizeof nothing);
    memset(sink, 0, sizeof sink);
    for (int n = 0; n < TQ * HQ; n++) {
        lse[n] = logf(2);
        dlse[n] = 1;
    }
    d.key.seqlen = 1;
    d.out.data = nothing;
    d.q.data = d.k.data = d.v.data = d.dout.data = nothing;
    d.lse.data = lse;
    d.dlse.data = dlse;
    d.sink.data = sink;
    d.dsink.data = dsink;
    d.bias = (attn_score_input){&bias, ATTN_F32, 0, 0, 0, 0};
    d.dbias = (attn_score_output){&dbias, ATTN_F32, 0, 0, 0, 0};
    if (attn_backward(c, &d) != ATTN_OK) {
        report_skip("gradients of backend %s: %s", attn_backend_name(backend),
                    attn_last_message(c));
    } else {
        EXPECT(fabsf(dbias - TQ * HQ / 2.0F) < 1e-4F, "dbias of one element: %g", (double)dbias);
        for (int h = 0; h < HQ; h++)
            EXPECT(fabsf(dsink[h] - TQ / 2.0F) < 1e-5F, "dsink[%d]: %g", h, (double)dsink[h]);
    }
    buffers_fill();
    attn_context_destroy(c);
}

void test_gradients(void)
{
    test_backend(ATTN_BACKEND_CPU);
    test_known(ATTN_BACKEND_CPU);
    if (eager_built()) {
        test_backend(ATTN_BACKEND_EAGER);
        test_known(ATTN_BACKEND_EAGER);
    }
}
