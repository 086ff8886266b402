/* SPDX-License-Identifier: BSD-3-Clause */
/* The check of a descriptor: its own fields here, arrays and tensors in check_*.c. */
#include "check.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "check_inner.h"

enum {
    FIRST_SIZE = sizeof(attn_desc), /* of the first header that had the structure */
    MOST_SIZE = 1 << 16             /* larger is no descriptor of any header to come */
};

attn_status attn_check_copy(const void *given, size_t first, void *to, size_t own,
                            const char *initializer, struct attn_message *m)
{
    size_t size;
    if (!given)
        return attn_say(m, ATTN_INVALID_NULL, "desc: null");
    memcpy(&size, given, sizeof size);
    if (size < first || size > MOST_SIZE)
        return attn_say(m, ATTN_INVALID_SIZE, "desc.size: %zu (%s() makes it %zu)", size,
                        initializer, own);
    for (size_t n = own; n < size; n++)
        if (((const unsigned char *)given)[n])
            return attn_say(m, ATTN_UNSUPPORTED, "desc.size: %zu is that of a newer header, and a "
                            "field that this version does not know, at byte %zu, is set", size, n);
    memset(to, 0, own);
    memcpy(to, given, size < own ? size : own);
    memcpy(to, &own, sizeof own);
    return ATTN_OK;
}

static attn_status check_enums(struct attn_check_state *c)
{
    const attn_desc *d = c->d;
    const struct {
        const char *name;
        int value, most;
    } enums[] = {
        {"query.layout", (int)d->query.layout, ATTN_PAGED},
        {"key.layout", (int)d->key.layout, ATTN_PAGED},
        {"align", (int)d->align, ATTN_BOTTOM_RIGHT},
        {"causal", d->causal, 1},
        {"window", d->window, 1},
    };
    for (size_t n = 0; n < sizeof enums / sizeof enums[0]; n++)
        if (enums[n].value < 0 || enums[n].value > enums[n].most)
            return attn_say(c->m, ATTN_INVALID_ENUM, "%s: %d (allowed: 0 to %d)", enums[n].name,
                            enums[n].value, enums[n].most);
    const attn_status status = attn_check_types(c);
    return status == ATTN_OK ? attn_check_arrays(c) : status;
}

/* Lower bounds that depend on other fields are checked with those: max_seqlen with the lengths. */
static const struct {
    const char *name;
    size_t offset;
    int64_t least;
} extents[] = {
    {"batch", offsetof(attn_desc, batch), 0},
    {"heads_q", offsetof(attn_desc, heads_q), 0},
    {"heads_kv", offsetof(attn_desc, heads_kv), 0},
    {"head_dim", offsetof(attn_desc, head_dim), 1},
    {"head_dim_v", offsetof(attn_desc, head_dim_v), 0},
#define SIDE(side, field) #side "." #field, offsetof(attn_desc, side.field)
    {SIDE(query, seqlen), 0}, {SIDE(query, tokens), 0}, {SIDE(query, max_seqlen), INT64_MIN},
    {SIDE(query, pages), 0}, {SIDE(query, page_size), 0}, {SIDE(query, max_pages), 0},
    {SIDE(key, seqlen), 0}, {SIDE(key, tokens), 0}, {SIDE(key, max_seqlen), INT64_MIN},
    {SIDE(key, pages), 0}, {SIDE(key, page_size), 0}, {SIDE(key, max_pages), 0},
    {"bias_elements", offsetof(attn_desc, bias_elements), 0},
};
enum { EXTENTS = sizeof extents / sizeof extents[0] };

static attn_status check_shapes(struct attn_check_state *c)
{
    const attn_desc *d = c->d;
    struct attn_problem *p = c->p;
    for (int n = 0; n < EXTENTS; n++) {
        const int64_t value = *(const int64_t *)attn_field(d, extents[n].offset);
        if (value < extents[n].least)
            return attn_say(c->m, ATTN_INVALID_SHAPE, "%s: %lld (allowed: %lld or more)",
                            extents[n].name, (long long)value, (long long)extents[n].least);
    }
    if (d->key.layout == ATTN_PAGED && d->key.page_size == 0)
        return attn_say(c->m, ATTN_INVALID_SHAPE, "key.page_size: 0 (allowed: 1 or more)");
    p->batch = d->batch;
    p->heads_q = d->heads_q;
    p->heads_kv = d->heads_kv ? d->heads_kv : d->heads_q;
    p->head_dim = d->head_dim;
    p->head_dim_v = d->head_dim_v ? d->head_dim_v : d->head_dim;
    return ATTN_OK;
}

/* Products that backends and later steps form without looking. */
static attn_status check_products(struct attn_check_state *c)
{
    enum { BEFORE = -1 }; /* stands for the product of the line before */
    const attn_desc *d = c->d;
    const struct attn_problem *p = c->p;
    const struct {
        const char *name;
        int64_t a, b;
    } products[] = {
        {"batch * query.seqlen", p->batch, d->query.seqlen},
        {"batch * query.seqlen * heads_q", BEFORE, p->heads_q},
        {"batch * key.seqlen", p->batch, d->key.seqlen},
        {"batch * key.seqlen * heads_kv", BEFORE, p->heads_kv},
        {"batch * heads_q", p->batch, p->heads_q},
        {"batch * heads_kv", p->batch, p->heads_kv},
        {"query.tokens * heads_q", d->query.tokens, p->heads_q},
        {"key.tokens * heads_kv", d->key.tokens, p->heads_kv},
        {"heads_q * head_dim", p->heads_q, p->head_dim},
        {"heads_q * head_dim_v", p->heads_q, p->head_dim_v},
        {"heads_kv * head_dim", p->heads_kv, p->head_dim},
        {"heads_kv * head_dim_v", p->heads_kv, p->head_dim_v},
        {"key.pages * key.page_size", d->key.pages, d->key.page_size},
        {"key.page_size * key.max_pages", d->key.page_size, d->key.max_pages},
        {"key.page_size * key.max_pages * batch", BEFORE, p->batch},
    };
    int64_t product = 0;
    for (size_t n = 0; n < sizeof products / sizeof products[0]; n++) {
        const int64_t a = products[n].a == BEFORE ? product : products[n].a, b = products[n].b;
        if (__builtin_mul_overflow(a, b, &product))
            return attn_say(c->m, ATTN_INVALID_OVERFLOW, "%s: %lld * %lld does not fit in 63 bits",
                            products[n].name, (long long)a, (long long)b);
    }
    return ATTN_OK;
}

static attn_status check_overflow(struct attn_check_state *c)
{
    for (int n = 0; n < EXTENTS; n++) {
        const int64_t value = *(const int64_t *)attn_field(c->d, extents[n].offset);
        if (value >= ATTN_FAR)
            return attn_say(c->m, ATTN_INVALID_OVERFLOW, "%s: %lld (allowed: below 2^60)",
                            extents[n].name, (long long)value);
    }
    return check_products(c);
}

static attn_status check_heads(struct attn_check_state *c)
{
    struct attn_problem *p = c->p;
    if (p->heads_kv && p->heads_q % p->heads_kv != 0)
        return attn_say(c->m, ATTN_INVALID_HEADS, "heads_kv: %lld does not divide heads_q = %lld",
                        (long long)p->heads_kv, (long long)p->heads_q);
    p->group = p->heads_kv ? p->heads_q / p->heads_kv : 0;
    return ATTN_OK;
}

static int64_t window_end(int64_t given) /* -1: unlimited */
{
    return given < 0 || given > ATTN_FAR ? ATTN_FAR : given;
}

/* Nothing is scaled by a division by 0, and nothing counted from a number that is not used. */
static struct attn_dropout dropout_of(const attn_desc *d)
{
    const double p = d->dropout;
    return (struct attn_dropout){
        .on = p != 0,
        .least = (uint64_t)round(p * 4294967296.0),
        .scale = p < 1 ? 1 / (1 - p) : 0,
        .seed = d->dropout_seed,
        .offset = d->dropout_offset,
        .first_sequence = p != 0 ? d->first_sequence : 0,
    };
}

static attn_status check_values(struct attn_check_state *c)
{
    const attn_desc *d = c->d;
    struct attn_problem *p = c->p;
    if (!isfinite(d->scale))
        return attn_say(c->m, ATTN_INVALID_VALUE, "scale: %g is not finite", d->scale);
    if (!(isfinite(d->softcap) && d->softcap >= 0))
        return attn_say(c->m, ATTN_INVALID_VALUE, "softcap: %g (allowed: 0 or more, finite)",
                        d->softcap);
    if (!(d->dropout >= 0 && d->dropout <= 1))
        return attn_say(c->m, ATTN_INVALID_VALUE, "dropout: %g (allowed: 0 to 1)", d->dropout);

    const int64_t ends[] = {d->window ? d->window_left : 0, d->window ? d->window_right : 0};
    for (int n = 0; n < 2; n++)
        if (ends[n] < -1)
            return attn_say(c->m, ATTN_INVALID_VALUE, "%s: %lld (allowed: -1 or more)",
                            n ? "window_right" : "window_left", (long long)ends[n]);
    if (d->first_sequence < 0)
        return attn_say(c->m, ATTN_INVALID_VALUE, "first_sequence: %lld (allowed: 0 or more)",
                        (long long)d->first_sequence);

    p->scale = d->scale == 0 ? 1 / sqrt((double)p->head_dim) : d->scale;
    p->softcap = d->softcap;
    p->dropout = dropout_of(d);
    p->rule.left = d->window ? window_end(d->window_left) : ATTN_FAR;
    p->rule.right = d->window ? window_end(d->window_right) : ATTN_FAR;
    p->rule.causal = d->causal;
    p->rule.bottom_right = d->align == ATTN_BOTTOM_RIGHT;
    return ATTN_OK;
}

attn_status attn_check_side_fields(struct attn_check_state *c, const char *name,
                                   const attn_side *s)
{
    static const char *const layouts[] = {"padded", "packed", "paged"};
    const struct {
        const char *field;
        bool given;
        attn_layout layout;
        long long value;
    } fields[] = {
        {"tokens", s->tokens, ATTN_PACKED, s->tokens},
        {"cu_seqlens", s->cu_seqlens.data, ATTN_PACKED, 0},
        {"pages", s->pages, ATTN_PAGED, s->pages},
        {"page_size", s->page_size, ATTN_PAGED, s->page_size},
        {"block_table", s->block_table.data, ATTN_PAGED, 0},
        {"max_pages", s->max_pages, ATTN_PAGED, s->max_pages},
    };
    for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++)
        if (fields[n].given && fields[n].layout != s->layout) {
            if (fields[n].value)
                return attn_say(c->m, ATTN_INVALID_CONFLICT, "%s.%s: %lld, but %s.layout is %s",
                                name, fields[n].field, fields[n].value, name, layouts[s->layout]);
            return attn_say(c->m, ATTN_INVALID_CONFLICT, "%s.%s: given, but %s.layout is %s", name,
                            fields[n].field, name, layouts[s->layout]);
        }
    return ATTN_OK;
}

/* With bias_offset the lengths tell the strides. */
static attn_status check_offset_strides(struct attn_check_state *c, const char *name,
                                        const int64_t stride[4])
{
    static const struct {
        const char *name, *why;
        bool broadcast; /* ATTN_BROADCAST is as good as 0 */
    } axes[] = {{"batch_stride", "bias_offset takes its place", true},
                {"head_stride", "with bias_offset it is 0 or ATTN_BROADCAST", true},
                {"query_stride", "with bias_offset the lengths tell it", false},
                {"key_stride", "with bias_offset keys lie side by side", false}};
    for (int n = 0; n < 4; n++)
        if (stride[n] != 0 && !(axes[n].broadcast && stride[n] == ATTN_BROADCAST))
            return attn_say(c->m, ATTN_INVALID_CONFLICT, "%s.%s: %lld, but %s", name, axes[n].name,
                            (long long)stride[n], axes[n].why);
    return ATTN_OK;
}

static attn_status check_offset_biases(struct attn_check_state *c)
{
    const attn_score_input *b = &c->d->bias;
    const attn_score_output *g = &c->d->dbias;
    const int64_t bias[] = {b->batch_stride, b->head_stride, b->query_stride, b->key_stride};
    const int64_t dbias[] = {g->batch_stride, g->head_stride, g->query_stride, g->key_stride};
    if (!c->d->bias_offset.data)
        return ATTN_OK;
    const attn_status status = check_offset_strides(c, "bias", bias);
    return status == ATTN_OK && c->p->pass == ATTN_PASS_BACKWARD && g->data
               ? check_offset_strides(c, "dbias", dbias)
               : status;
}

static attn_status check_conflicts(struct attn_check_state *c)
{
    const attn_desc *d = c->d;
    const bool back = c->p->pass == ATTN_PASS_BACKWARD, run = c->mode == ATTN_CHECK_RUN;
    const bool aligned = d->align != ATTN_ALIGN_NONE;
    const bool offsets = d->bias_offset.data;
    const struct {
        bool wrong;
        const char *field;
        int64_t value;
        const char *why;
    } rules[] = {
        {(d->causal || d->window) && !aligned, "align", 0,
         "causal and window need ATTN_TOP_LEFT or ATTN_BOTTOM_RIGHT"},
        {!d->window && d->window_left, "window_left", d->window_left, "window is 0"},
        {!d->window && d->window_right, "window_right", d->window_right, "window is 0"},
        {offsets && !d->bias.data, "bias.data", 0, "bias_offset is given"},
        {!offsets && d->bias_elements, "bias_elements", d->bias_elements, "bias_offset is null"},
        {back && offsets && d->dbias.data && d->dbias.head_stride != d->bias.head_stride,
         "dbias.head_stride", d->dbias.head_stride, "with bias_offset it is that of bias"},
        {d->prefix.data && !d->causal, "causal", 0, "prefix is given"},
        {!d->query_docs.data && d->key_docs.data, "query_docs.data", 0, "key_docs is given"},
        {d->query_docs.data && !d->key_docs.data, "key_docs.data", 0, "query_docs is given"},
        {d->block_mask.data && d->block_q < 1, "block_q", d->block_q, "block_mask is given"},
        {d->block_mask.data && d->block_k < 1, "block_k", d->block_k, "block_mask is given"},
        {!d->block_mask.data && d->block_q, "block_q", d->block_q, "block_mask is null"},
        {!d->block_mask.data && d->block_k, "block_k", d->block_k, "block_mask is null"},
        {d->probs_user && !d->probs_fn, "probs_fn", 0, "probs_user is given"},
        {back && d->dbias.data && !d->bias.data, "bias.data", 0, "dbias is given"},
        {back && d->dsink.data && !d->sink.data, "sink.data", 0, "dsink is given"},
        {run && d->workspace_bytes && !d->workspace, "workspace", 0, "workspace_bytes is not 0"},
    };
    for (size_t n = 0; n < sizeof rules / sizeof rules[0]; n++)
        if (rules[n].wrong)
            return attn_say(c->m, ATTN_INVALID_CONFLICT, "%s: %lld, but %s", rules[n].field,
                            (long long)rules[n].value, rules[n].why);
    attn_status status = attn_check_side_fields(c, "query", &d->query);
    if (status == ATTN_OK)
        status = attn_check_side_fields(c, "key", &d->key);
    return status == ATTN_OK ? check_offset_biases(c) : status;
}

/* What is no tensor among the outputs, and which features are used. */
static attn_status set_features(struct attn_check_state *c)
{
    const attn_desc *d = c->d;
    struct attn_problem *p = c->p;
    const bool forward = p->pass == ATTN_PASS_FORWARD;
    p->block_q = d->block_q;
    p->block_k = d->block_k;
    p->probs_fn = forward ? d->probs_fn : NULL;
    p->probs_user = d->probs_user;
    const bool used[ATTN_FEATURES] = {
        [ATTN_USES_SOFTCAP] = d->softcap != 0,
        [ATTN_USES_BIAS] = d->bias.data,
        [ATTN_USES_BIAS_OFFSET] = d->bias_offset.data,
        [ATTN_USES_ALIBI] = d->alibi.data,
        [ATTN_USES_SINK] = d->sink.data,
        [ATTN_USES_CAUSAL] = d->causal,
        [ATTN_USES_WINDOW] = d->window,
        [ATTN_USES_KEY_MASK] = d->key_mask.data,
        [ATTN_USES_QUERY_MASK] = d->query_mask.data,
        [ATTN_USES_MASK] = d->mask.data,
        [ATTN_USES_DOCS] = d->query_docs.data,
        [ATTN_USES_PREFIX] = d->prefix.data,
        [ATTN_USES_BLOCK_MASK] = d->block_mask.data,
        [ATTN_USES_DROPOUT] = d->dropout != 0,
        [ATTN_USES_LSE] = d->lse.data,
        [ATTN_USES_PROBS] = forward && d->probs.data,
        [ATTN_USES_PROBS_FN] = forward && d->probs_fn,
        [ATTN_USES_KEY_SUMS] = forward && d->key_sums.data,
        [ATTN_USES_SEQUSED] = d->query.seqused.data || d->key.seqused.data,
        [ATTN_USES_PACKED] = d->query.layout == ATTN_PACKED || d->key.layout == ATTN_PACKED,
        [ATTN_USES_PAGED] = d->key.layout == ATTN_PAGED,
        [ATTN_USES_GQA] = p->heads_kv != p->heads_q,
        [ATTN_USES_BACKWARD] = !forward,
        [ATTN_USES_DLSE] = !forward && d->dlse.data,
        [ATTN_USES_DBIAS] = !forward && d->dbias.data,
        [ATTN_USES_DSINK] = !forward && d->dsink.data,
    };
    for (int f = 0; f < ATTN_FEATURES; f++)
        p->features |= used[f] ? ATTN_BIT(f) : 0;
    return ATTN_OK;
}

/* All steps; c has the mode and what is written to. */
static attn_status check(struct attn_check_state *c, const attn_desc *given, attn_pass pass,
                         attn_desc *desc)
{
    static attn_status (*const steps[])(struct attn_check_state *) = {
        check_enums,        check_shapes,     check_overflow, check_heads,
        attn_check_dtypes,  attn_check_lengths, attn_check_nulls, check_values,
        check_conflicts,    attn_check_strides, attn_check_overlap, set_features,
    };
    attn_status status =
        attn_check_copy(given, FIRST_SIZE, desc, sizeof *desc, "attn_desc_init", c->m);
    memset(c->p, 0, sizeof *c->p);
    c->p->pass = pass;
    c->d = desc;
    c->count = 0;
    for (size_t n = 0; status == ATTN_OK && n < sizeof steps / sizeof steps[0]; n++)
        status = steps[n](c);
    return status;
}

attn_status attn_check(const attn_desc *given, attn_pass pass, enum attn_check_mode mode,
                       attn_desc *desc, struct attn_problem *problem, struct attn_message *m)
{
    struct attn_check_state c;
    c.mode = mode;
    c.p = problem;
    c.m = m;
    c.keep = NULL;
    return check(&c, given, pass, desc);
}

attn_status attn_check_keep(const attn_desc *given, const attn_score_output *keep,
                            struct attn_problem *problem, struct attn_score_view *view,
                            struct attn_message *m)
{
    struct attn_check_state c;
    attn_desc desc;
    if (!keep)
        return attn_say(m, ATTN_INVALID_NULL, "keep: null");
    c.mode = ATTN_CHECK_KEEP;
    c.p = problem;
    c.m = m;
    c.keep = keep;
    c.keep_view = view;
    return check(&c, given, ATTN_PASS_FORWARD, &desc);
}
