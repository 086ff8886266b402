/* SPDX-License-Identifier: BSD-3-Clause */
/* The call that a problem is, and the line that tells it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "problem_image.h"
#include "rng.h"

static attn_input input_of(const struct tensor *t, unsigned char *const *data)
{
    return (attn_input){data[t->buffer] + (size_t)t->offset * element_size(t->dtype), t->dtype,
                        t->given[0], t->given[1], t->given[2]};
}

static attn_output output_of(const struct tensor *t, unsigned char *const *data)
{
    return (attn_output){data[t->buffer] + (size_t)t->offset * element_size(t->dtype), t->dtype,
                         t->given[0], t->given[1], t->given[2]};
}

static attn_side side_of(const struct side *s, const void *cu, const void *used)
{
    attn_side a;

    memset(&a, 0, sizeof a);
    a.layout = s->packed ? ATTN_PACKED : s->paged ? ATTN_PAGED : ATTN_PADDED;
    a.max_seqlen = s->max_seqlen;
    if (s->packed) {
        a.tokens = s->tokens;
        a.cu_seqlens = (attn_index){cu, s->cu_type};
    } else if (s->paged) {
        a.pages = s->pages;
        a.page_size = s->page_size;
        a.max_pages = s->max_pages;
    } else {
        a.seqlen = s->seqlen;
    }
    if (s->has_used)
        a.seqused = (attn_index){used, s->used_type};
    return a;
}

static attn_score_input plane_of(const struct plane *t, const unsigned char *data)
{
    const size_t size = t->dtype == ATTN_BOOL ? 1 : element_size(t->dtype);

    return (attn_score_input){data + (size_t)t->offset * size, t->dtype, t->batch, t->head,
                              t->query, t->key};
}

/* Of the bias or its gradient. */
static attn_score_input bias_of(const struct problem *p, enum buffer_name name,
                                const struct plane *t, unsigned char *const *data)
{
    if (!p->bias_by_offset)
        return plane_of(t, data[name]);
    return (attn_score_input){data[name], p->bias.dtype, 0, p->bias_by_head ? 0 : ATTN_BROADCAST,
                              0, 0};
}

static void set_scores(const struct problem *p, unsigned char *const *data, attn_desc *d)
{
    d->scale = p->scale;
    d->softcap = p->softcap;
    if (p->has_bias)
        d->bias = bias_of(p, BUFFER_BIAS, &p->bias, data);
    if (p->bias_by_offset)
        d->bias_offset = (attn_index){data[BUFFER_BIAS_OFFSET], p->offset_type};
    if (p->has_alibi)
        d->alibi = input_of(&p->alibi, data);
    if (p->has_sink)
        d->sink = input_of(&p->sink, data);
    d->dropout = p->dropout;
    d->dropout_seed = p->dropout_seed;
    d->dropout_offset = p->dropout_offset;
    d->first_sequence = p->first_sequence;
}

static void set_masks(const struct problem *p, unsigned char *const *data, attn_desc *d)
{
    d->align = p->align;
    d->causal = p->causal;
    d->window = p->window;
    d->window_left = p->window ? p->left : 0;
    d->window_right = p->window ? p->right : 0;
    if (p->has_prefix)
        d->prefix = (attn_index){data[BUFFER_PREFIX], p->prefix_type};
    if (p->has_key_mask)
        d->key_mask = (attn_token_mask){data[BUFFER_KEY_MASK], p->key_mask_given};
    if (p->has_query_mask)
        d->query_mask = (attn_token_mask){data[query_mask_buffer(p)], p->query_mask_given};
    if (p->has_mask)
        d->mask = plane_of(&p->mask, data[BUFFER_MASK]);
    if (p->has_block_mask) {
        d->block_mask = plane_of(&p->block, data[BUFFER_BLOCK_MASK]);
        d->block_q = p->block_q;
        d->block_k = p->block_k;
    }
    if (p->has_docs) {
        d->query_docs = (attn_index){data[BUFFER_DOCS_Q], p->query_docs_type};
        d->key_docs = (attn_index){data[BUFFER_DOCS_K], p->key_docs_type};
    }
}

static void set_gradients(const struct problem *p, unsigned char *const *data, attn_desc *d)
{
    d->dout = input_of(&p->dout, data);
    if (p->has_dlse)
        d->dlse = input_of(&p->dlse, data);
    d->dq = output_of(&p->grad_q, data);
    d->dk = output_of(&p->grad_k, data);
    d->dv = output_of(&p->grad_v, data);
    if (p->has_dsink)
        d->dsink = output_of(&p->dsink, data);
    if (p->has_dbias) {
        const attn_score_input x = bias_of(p, BUFFER_DBIAS, &p->dbias, data);
        d->dbias = (attn_score_output){(void *)(uintptr_t)x.data, x.dtype, x.batch_stride,
                                       x.head_stride, x.query_stride, x.key_stride};
    }
}

static void set_outputs(const struct problem *p, unsigned char *const *data, attn_desc *d)
{
    const struct plane *t = &p->probs;

    d->out = output_of(&p->out, data);
    if (p->has_lse)
        d->lse = output_of(&p->lse, data);
    if (p->has_sums)
        d->key_sums = output_of(&p->sums, data);
    if (p->has_probs)
        d->probs = (attn_score_output){
            data[BUFFER_PROBS] + (size_t)t->offset * element_size(t->dtype), t->dtype,
            t->untold ? 0 : t->batch, t->untold ? 0 : t->head, t->untold ? 0 : t->query,
            t->untold ? 0 : t->key};
}

/* Whether strides that nothing depends on are told as huge ones. */
static bool tells_far_strides(const struct problem *p)
{
    struct rng r = rng_seeded(p->seed ^ UINT64_C(0xfa5));

    return rng_chance(&r, 25);
}

/* Nothing lies one stride apart on an axis of one element, so it may be any number. */
static void go_far(struct rng *r, int64_t extent, int64_t *stride)
{
    if (extent == 1 && *stride > 0 && rng_chance(r, 70))
        *stride = INT64_MAX - rng_below(r, 9);
}

static void go_far_input(struct rng *r, attn_input *x, const struct tensor *t, const struct side *s,
                         int64_t batch)
{
    go_far(r, s->packed ? 1 : s->paged ? s->pages : batch, &x->batch_stride);
    go_far(r, side_rows(s), &x->token_stride);
    go_far(r, t->heads, &x->head_stride);
}

static void go_far_output(struct rng *r, attn_output *x, const struct tensor *t,
                          const struct side *s, int64_t batch)
{
    attn_input same = {x->data, x->dtype, x->batch_stride, x->token_stride, x->head_stride};

    go_far_input(r, &same, t, s, batch);
    *x = (attn_output){x->data, x->dtype, same.batch_stride, same.token_stride, same.head_stride};
}

static void go_far_plane(struct rng *r, attn_score_input *x, const struct problem *p,
                         int64_t block_q, int64_t block_k)
{
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);

    go_far(r, p->batch, &x->batch_stride);
    go_far(r, p->hq, &x->head_stride);
    go_far(r, (nq + block_q - 1) / block_q, &x->query_stride);
    go_far(r, (nk + block_k - 1) / block_k, &x->key_stride);
}

static void go_far_scores(struct rng *r, attn_score_output *x, const struct problem *p)
{
    attn_score_input same = {x->data,         x->dtype,        x->batch_stride,
                             x->head_stride, x->query_stride, x->key_stride};

    go_far_plane(r, &same, p, 1, 1);
    *x = (attn_score_output){x->data,          x->dtype,          same.batch_stride,
                             same.head_stride, same.query_stride, same.key_stride};
}

static void tell_far_strides(const struct problem *p, attn_desc *d)
{
    const struct side *q = &p->query, *k = &p->key, keys = side_unpaged(k);
    struct rng rng = rng_seeded(p->seed ^ UINT64_C(0xfa6)), *r = &rng;

    go_far_input(r, &d->q, &p->q, q, p->batch);
    go_far_input(r, &d->k, &p->k, k, p->batch);
    go_far_input(r, &d->v, &p->v, k, p->batch);
    go_far_output(r, &d->out, &p->out, q, p->batch);
    go_far_output(r, &d->lse, &p->lse, q, p->batch);
    go_far_output(r, &d->key_sums, &p->sums, &keys, p->batch);
    go_far_input(r, &d->dout, &p->dout, q, p->batch);
    go_far_input(r, &d->dlse, &p->dlse, q, p->batch);
    go_far_output(r, &d->dq, &p->grad_q, q, p->batch);
    go_far_output(r, &d->dk, &p->grad_k, k, p->batch);
    go_far_output(r, &d->dv, &p->grad_v, k, p->batch);
    go_far(r, p->batch, &d->alibi.batch_stride);
    go_far(r, p->hq, &d->alibi.head_stride);
    go_far(r, p->hq, &d->sink.head_stride);
    go_far(r, p->hq, &d->dsink.head_stride);
    go_far(r, p->batch, &d->key_mask.batch_stride);
    go_far(r, p->batch, &d->query_mask.batch_stride);
    go_far_plane(r, &d->mask, p, 1, 1);
    if (p->has_block_mask)
        go_far_plane(r, &d->block_mask, p, p->block_q, p->block_k);
    go_far_scores(r, &d->probs, p);
    if (p->bias_by_offset)
        return;
    go_far_plane(r, &d->bias, p, 1, 1);
    go_far_scores(r, &d->dbias, p);
}

attn_desc problem_desc(const struct problem *p, unsigned char *const *data)
{
    attn_desc d = attn_desc_init();

    d.batch = p->batch;
    d.heads_q = p->hq;
    d.heads_kv = p->tell_hkv ? p->hkv : 0;
    d.head_dim = p->d;
    d.head_dim_v = p->tell_dv ? p->dv : 0;
    d.query = side_of(&p->query, data[BUFFER_CU_Q], data[BUFFER_USED_Q]);
    d.key = side_of(&p->key, data[BUFFER_CU_K], data[BUFFER_USED_K]);
    if (p->key.paged)
        d.key.block_table = (attn_index){data[BUFFER_TABLE], p->key.table_type};
    d.q = input_of(&p->q, data);
    d.k = input_of(&p->k, data);
    d.v = input_of(&p->v, data);
    set_scores(p, data, &d);
    set_masks(p, data, &d);
    set_outputs(p, data, &d);
    if (p->backward)
        set_gradients(p, data, &d);
    if (tells_far_strides(p))
        tell_far_strides(p, &d);
    return d;
}

struct line {
    char *text;
    size_t size, used;
};

static void say(struct line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct line *l, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const int n = vsnprintf(l->text + l->used, l->size - l->used, format, args);
    va_end(args);
    if (n > 0)
        l->used += (size_t)n < l->size - l->used ? (size_t)n : l->size - l->used - 1;
}

static void say_side(struct line *l, const char *name, const struct side *s, int64_t batch)
{
    say(l, " %s=%s(%lld)[", name, s->packed ? "packed" : s->paged ? "paged" : "padded",
        (long long)side_rows(s));
    for (int64_t b = 0; b < batch; b++)
        if (s->used[b] != s->room[b])
            say(l, "%s%lld/%lld", b ? " " : "", (long long)s->used[b], (long long)s->room[b]);
        else
            say(l, "%s%lld", b ? " " : "", (long long)s->used[b]);
    say(l, "]");
}

static void say_plane(struct line *l, const char *name, const struct plane *t)
{
    say(l, " %s=%s[%s%s%s%s]", name, t->dtype == ATTN_BOOL ? "" : element_name(t->dtype),
        t->batch ? "b" : "", t->head ? "h" : "", t->query ? "q" : "", t->key ? "k" : "");
}

static void say_features(struct line *l, const struct problem *p)
{
    const struct {
        bool on;
        const char *name;
    } flags[] = {{p->has_key_mask, "key-mask"}, {p->has_query_mask, "query-mask"},
                 {p->one_mask, "(one)"}, {p->has_docs, "docs"}, {p->has_prefix, "prefix"},
                 {p->has_alibi, p->alibi.batch ? "alibi-by-sequence" : "alibi"},
                 {p->has_sink, "sink"}, {p->has_probs, "probs"}, {p->has_tiles, "probs-fn"},
                 {p->has_sums, "key-sums"}, {p->has_dlse, "dlse"}, {p->has_dsink, "dsink"}};

    for (size_t n = 0; n < sizeof flags / sizeof *flags; n++)
        if (flags[n].on)
            say(l, " %s", flags[n].name);
    if (p->softcap != 0)
        say(l, " softcap=%g", p->softcap);
    if (p->bias_by_offset)
        say(l, " bias=%s-by-offset%s", element_name(p->bias.dtype), p->bias_by_head ? "-head" : "");
    else if (p->has_bias)
        say_plane(l, "bias", &p->bias);
    if (p->has_dbias)
        say_plane(l, "dbias", &p->dbias);
    if (p->has_mask)
        say_plane(l, "mask", &p->mask);
    if (p->has_block_mask) {
        say_plane(l, "block-mask", &p->block);
        say(l, "%lldx%lld", (long long)p->block_q, (long long)p->block_k);
    }
    if (p->dropout != 0)
        say(l, " dropout=%g", p->dropout);
}

void problem_print(const struct problem *p, char *text, size_t size)
{
    struct line l = {text, size, 0};

    say(&l, "%s%s B=%lld H=%lld/%lld d=%lld/%lld", p->backward ? "backward " : "",
        element_name(p->dtype), (long long)p->batch, (long long)p->hq, (long long)p->hkv,
        (long long)p->d, (long long)p->dv);
    say_side(&l, "q", &p->query, p->batch);
    say_side(&l, "k", &p->key, p->batch);
    if (p->causal)
        say(&l, " causal");
    if (p->window)
        say(&l, " window=%lld,%lld", (long long)p->left, (long long)p->right);
    if (p->align != ATTN_ALIGN_NONE)
        say(&l, " %s", p->align == ATTN_TOP_LEFT ? "top-left" : "bottom-right");
    if (p->scale != 0)
        say(&l, " scale=%g", p->scale);
    say_features(&l, p);
    say(&l, " values=%s layout=%s%s%s", p->values, p->layout,
        tells_far_strides(p) ? ",far" : "", p->has_lse ? "" : " no-lse");
}
