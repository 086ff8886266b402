/* SPDX-License-Identifier: BSD-3-Clause */
/* Attention in the forms of well-known calls: each fills a descriptor for attn_forward(). */
#include <inttypes.h>

#include "context.h"

struct strides {
    int64_t batch, token, head;
};

/* Zeros: contiguous in the descriptor's own layout. */
static const struct strides contiguous = {0, 0, 0};

static attn_input input(const void *data, attn_dtype dtype, struct strides s)
{
    const attn_input x = {data, dtype, s.batch, s.token, s.head};
    return x;
}

static attn_output output(void *data, attn_dtype dtype, struct strides s)
{
    const attn_output x = {data, dtype, s.batch, s.token, s.head};
    return x;
}

/* [B, S, H * D] is [B, S, H, D] with the last two extents as one. */
static attn_desc flattened(attn_dtype dtype, int64_t batch, int64_t seqlen, int64_t heads,
                           int64_t head_dim, const void *q, const void *k, const void *v,
                           const uint8_t *mask, void *out)
{
    attn_desc d = attn_desc_init();
    d.batch = batch;
    d.heads_q = heads;
    d.head_dim = head_dim;
    d.query.seqlen = seqlen;
    d.key.seqlen = seqlen;
    d.q = input(q, dtype, contiguous);
    d.k = input(k, dtype, contiguous);
    d.v = input(v, dtype, contiguous);
    d.out = output(out, dtype, contiguous);
    d.key_mask.data = mask;
    return d;
}

attn_status attn_bidirectional(attn_context *context, attn_dtype dtype, int64_t batch,
                               int64_t seqlen, int64_t heads, int64_t head_dim, const void *q,
                               const void *k, const void *v, const uint8_t *mask, void *out)
{
    const attn_desc d = flattened(dtype, batch, seqlen, heads, head_dim, q, k, v, mask, out);
    return attn_forward(context, &d);
}

attn_status attn_causal(attn_context *context, attn_dtype dtype, int64_t batch, int64_t seqlen,
                        int64_t heads, int64_t head_dim, const void *q, const void *k,
                        const void *v, const uint8_t *mask, void *out)
{
    attn_desc d = flattened(dtype, batch, seqlen, heads, head_dim, q, k, v, mask, out);
    d.causal = 1;
    d.align = ATTN_TOP_LEFT;
    return attn_forward(context, &d);
}

static attn_status check_flag(const char *name, int32_t value, struct attn_message *m)
{
    return value == 0 || value == 1
               ? ATTN_OK
               : attn_say(m, ATTN_INVALID_ENUM, "%s: %d, expected 0 or 1", name, (int)value);
}

/* In these forms heads_kv and head_dim_v are arguments of their own, and 0 stands for nothing. */
static attn_status check_explicit(int64_t heads_q, int64_t heads_kv, int64_t head_dim_v,
                                  struct attn_message *m)
{
    if (heads_kv == 0 && heads_q != 0)
        return attn_say(m, ATTN_INVALID_HEADS, "heads_kv: 0 for %" PRId64 " query heads", heads_q);
    if (head_dim_v == 0)
        return attn_say(m, ATTN_INVALID_SHAPE, "head_dim_v: 0");
    return ATTN_OK;
}

static attn_status check_sdpa(int64_t heads_q, int64_t heads_kv, int64_t head_dim_v,
                              const attn_score_input *attn_mask, int32_t is_causal,
                              int32_t enable_gqa, struct attn_message *m)
{
    attn_status status = check_flag("is_causal", is_causal, m);
    if (status == ATTN_OK)
        status = check_flag("enable_gqa", enable_gqa, m);
    if (status == ATTN_OK)
        status = check_explicit(heads_q, heads_kv, head_dim_v, m);
    if (status != ATTN_OK)
        return status;
    if (attn_mask && is_causal)
        return attn_say(m, ATTN_INVALID_CONFLICT, "attn_mask: given together with is_causal");
    if (attn_mask && !attn_mask->data)
        return attn_say(m, ATTN_INVALID_NULL, "attn_mask.data: null");
    if (heads_q != heads_kv && !enable_gqa)
        return attn_say(m, ATTN_INVALID_HEADS,
                        "heads_kv: %" PRId64 ", heads_q: %" PRId64 ", and enable_gqa is 0",
                        heads_kv, heads_q);
    return ATTN_OK;
}

/* Strides of a contiguous [B, heads, seqlen, dim]. Extents that are wrong for any call give 0s,
 * and the descriptor's check names them. */
static attn_status head_major(const char *name, int64_t heads, int64_t seqlen, int64_t dim,
                              struct strides *s, struct attn_message *m)
{
    s->batch = s->token = s->head = 0;
    if (heads < 0 || seqlen < 0 || dim < 1)
        return ATTN_OK;
    s->token = dim;
    if (__builtin_mul_overflow(seqlen, dim, &s->head) ||
        __builtin_mul_overflow(heads, s->head, &s->batch))
        return attn_say(m, ATTN_INVALID_OVERFLOW,
                        "%s: %" PRId64 " x %" PRId64 " x %" PRId64 " elements per sequence", name,
                        heads, seqlen, dim);
    return ATTN_OK;
}

attn_status attn_sdpa(attn_context *context, attn_dtype dtype, int64_t batch, int64_t heads_q,
                      int64_t heads_kv, int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim,
                      int64_t head_dim_v, const void *query, const void *key, const void *value,
                      const attn_score_input *attn_mask, double dropout_p, uint64_t seed,
                      int32_t is_causal, double scale, int32_t enable_gqa, void *out)
{
    attn_desc d = attn_desc_init();
    struct strides qs, ks, vs, os;
    struct attn_call call;
    attn_status status = attn_call_begin(&call, context);
    struct attn_message *m = call.message;
    if (status == ATTN_OK)
        status = check_sdpa(heads_q, heads_kv, head_dim_v, attn_mask, is_causal, enable_gqa, m);
    if (status == ATTN_OK)
        status = head_major("query", heads_q, seqlen_q, head_dim, &qs, m);
    if (status == ATTN_OK)
        status = head_major("key", heads_kv, seqlen_k, head_dim, &ks, m);
    if (status == ATTN_OK)
        status = head_major("value", heads_kv, seqlen_k, head_dim_v, &vs, m);
    if (status == ATTN_OK)
        status = head_major("out", heads_q, seqlen_q, head_dim_v, &os, m);
    if (status != ATTN_OK)
        return status;

    d.batch = batch;
    d.heads_q = heads_q;
    d.heads_kv = heads_kv;
    d.head_dim = head_dim;
    d.head_dim_v = head_dim_v;
    d.query.seqlen = seqlen_q;
    d.key.seqlen = seqlen_k;
    d.q = input(query, dtype, qs);
    d.k = input(key, dtype, ks);
    d.v = input(value, dtype, vs);
    d.out = output(out, dtype, os);
    d.scale = scale;
    d.dropout = dropout_p;
    d.dropout_seed = seed;
    d.causal = is_causal;
    d.align = is_causal ? ATTN_TOP_LEFT : ATTN_ALIGN_NONE;
    if (attn_mask && attn_mask->dtype == ATTN_BOOL)
        d.mask = *attn_mask;
    else if (attn_mask)
        d.bias = *attn_mask;
    return attn_forward(context, &d);
}

static attn_side packed_side(const int32_t *cu_seqlens, int64_t tokens, int64_t max_seqlen)
{
    const attn_side side = {.layout = ATTN_PACKED,
                            .tokens = tokens,
                            .cu_seqlens = {cu_seqlens, ATTN_I32},
                            .max_seqlen = max_seqlen};
    return side;
}

attn_status attn_varlen(attn_context *context, attn_dtype dtype, int64_t batch, int64_t total_q,
                        int64_t total_k, int64_t heads_q, int64_t heads_kv, int64_t head_dim,
                        int64_t head_dim_v, const void *q, const void *k, const void *v,
                        const int32_t *cu_seqlens_q, const int32_t *cu_seqlens_k,
                        int64_t max_seqlen_q, int64_t max_seqlen_k, double dropout_p, uint64_t seed,
                        double softmax_scale, int32_t causal, int64_t window_left,
                        int64_t window_right, double softcap, const void *alibi_slopes, void *out,
                        void *lse)
{
    attn_desc d = attn_desc_init();
    struct attn_call call;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = check_explicit(heads_q, heads_kv, head_dim_v, call.message);
    if (status != ATTN_OK)
        return status;

    d.batch = batch;
    d.heads_q = heads_q;
    d.heads_kv = heads_kv;
    d.head_dim = head_dim;
    d.head_dim_v = head_dim_v;
    d.query = packed_side(cu_seqlens_q, total_q, max_seqlen_q);
    d.key = packed_side(cu_seqlens_k, total_k, max_seqlen_k);
    d.q = input(q, dtype, contiguous);
    d.k = input(k, dtype, contiguous);
    d.v = input(v, dtype, contiguous);
    d.out = output(out, dtype, contiguous);
    d.lse = output(lse, dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, contiguous);
    d.scale = softmax_scale;
    d.softcap = softcap;
    d.alibi = input(alibi_slopes, dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, contiguous);
    d.causal = causal;
    d.window = window_left != -1 || window_right != -1;
    if (d.window) {
        d.window_left = window_left;
        d.window_right = window_right;
    }
    if (d.causal || d.window)
        d.align = ATTN_BOTTOM_RIGHT;
    d.dropout = dropout_p;
    d.dropout_seed = seed;
    return attn_forward(context, &d);
}
