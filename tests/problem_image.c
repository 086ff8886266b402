/* SPDX-License-Identifier: BSD-3-Clause */
#include "problem_image.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

void problem_free(struct problem *p)
{
    for (int n = 0; n < BUFFERS; n++) {
        free(p->buffers[n].image);
        free(p->buffers[n].role);
    }
    memset(p, 0, sizeof *p);
}

void problem_buffer(struct problem *p, enum buffer_name name, size_t element, int64_t count)
{
    struct buffer *b = &p->buffers[name];

    b->element = element;
    b->count = count;
    b->image = test_alloc((size_t)count * element);
    b->role = test_alloc((size_t)count);
}

static void index_buffer(struct problem *p, enum buffer_name name, attn_itype type,
                         const int64_t *x, int64_t n)
{
    problem_buffer(p, name, type == ATTN_I64 ? 8 : 4, n);
    struct buffer *b = &p->buffers[name];

    memset(b->role, ROLE_FIXED, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        if (type == ATTN_I64)
            ((int64_t *)(void *)b->image)[i] = x[i];
        else
            ((int32_t *)(void *)b->image)[i] = (int32_t)x[i];
}

int64_t side_rows(const struct side *s) { return s->packed ? s->tokens : s->seqlen; }

void problem_index_buffers(struct problem *p)
{
    const struct side *q = &p->query, *k = &p->key;

    if (q->packed)
        index_buffer(p, BUFFER_CU_Q, q->cu_type, q->start, p->batch + 1);
    if (k->packed)
        index_buffer(p, BUFFER_CU_K, k->cu_type, k->start, p->batch + 1);
    if (q->has_used)
        index_buffer(p, BUFFER_USED_Q, q->used_type, q->used, p->batch);
    if (k->has_used)
        index_buffer(p, BUFFER_USED_K, k->used_type, k->used, p->batch);
    if (p->has_mask) {
        const int64_t n = k->packed ? k->tokens : p->batch * p->mask_stride;
        problem_buffer(p, BUFFER_MASK, 1, n);
        memset(p->buffers[BUFFER_MASK].image, 1, (size_t)n);
    }
}

int64_t tensor_at(const struct tensor *t, const struct side *s, int64_t b, int64_t token,
                  int64_t head)
{
    const int64_t row = s->packed ? s->start[b] + token : token;

    return t->offset + (s->packed ? 0 : b * t->batch) + row * t->token + head * t->head;
}

int64_t tensor_extent(const struct tensor *t, const struct side *s, int64_t batch)
{
    const int64_t rows = side_rows(s);

    if (rows == 0 || (!s->packed && batch == 0))
        return t->offset;
    return t->offset + (s->packed ? 0 : (batch - 1) * t->batch) + (rows - 1) * t->token +
           (t->heads - 1) * t->head + t->width;
}

int64_t mask_at(const struct problem *p, int64_t b, int64_t j)
{
    return p->key.packed ? p->key.start[b] + j : b * p->mask_stride + j;
}

struct truth_seq problem_rules(const struct problem *p, int64_t b)
{
    struct truth_seq s = {.dtype = p->dtype, .nq = p->query.used[b], .nk = p->key.used[b],
                          .hq = p->hq, .hkv = p->hkv, .d = p->d, .dv = p->dv, .scale = p->scale,
                          .causal = p->causal, .window = p->window, .align = p->align,
                          .left = p->left, .right = p->right};

    if (p->has_mask) {
        s.key_mask = test_alloc((size_t)s.nk);
        memcpy(s.key_mask, p->buffers[BUFFER_MASK].image + mask_at(p, b, 0), (size_t)s.nk);
    }
    return s;
}

static void set_role(struct problem *p, const struct tensor *t, const struct side *s, int64_t b,
                     int64_t token, enum role role)
{
    for (int64_t h = 0; h < t->heads; h++)
        memset(p->buffers[t->buffer].role + tensor_at(t, s, b, token, h), role, (size_t)t->width);
}

/* Every row of an output is written, whether a query takes part there or not. */
static void output_roles(struct problem *p, const struct tensor *t)
{
    struct side all = p->query;

    all.start[0] = 0;
    for (int64_t b = 0; b < (all.packed ? 1 : p->batch); b++)
        for (int64_t row = 0; row < side_rows(&all); row++)
            set_role(p, t, &all, b, row, ROLE_OUTPUT);
}

static void input_roles(struct problem *p, int64_t b)
{
    struct truth_seq s = problem_rules(p, b);
    bool *key_seen = test_alloc((size_t)s.nk * sizeof *key_seen);

    for (int64_t i = 0; i < s.nq; i++) {
        bool sees = false;
        for (int64_t j = 0; j < s.nk; j++)
            if (truth_visible(&s, i, j))
                sees = key_seen[j] = true;
        if (sees)
            set_role(p, &p->q, &p->query, b, i, ROLE_Q);
    }
    for (int64_t j = 0; j < s.nk; j++)
        if (key_seen[j]) {
            set_role(p, &p->k, &p->key, b, j, ROLE_K);
            set_role(p, &p->v, &p->key, b, j, ROLE_V);
        }
    if (p->has_mask)
        memset(p->buffers[BUFFER_MASK].role + mask_at(p, b, 0), ROLE_FIXED, (size_t)s.nk);
    free(key_seen);
    free(s.key_mask);
}

void problem_roles(struct problem *p)
{
    for (int64_t b = 0; b < p->batch; b++)
        input_roles(p, b);
    output_roles(p, &p->out);
    if (p->has_lse)
        output_roles(p, &p->lse);
}

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
    a.layout = s->packed ? ATTN_PACKED : ATTN_PADDED;
    a.max_seqlen = s->max_seqlen;
    if (s->packed) {
        a.tokens = s->tokens;
        a.cu_seqlens = (attn_index){cu, s->cu_type};
    } else {
        a.seqlen = s->seqlen;
    }
    if (s->has_used)
        a.seqused = (attn_index){used, s->used_type};
    return a;
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
    d.q = input_of(&p->q, data);
    d.k = input_of(&p->k, data);
    d.v = input_of(&p->v, data);
    d.out = output_of(&p->out, data);
    if (p->has_lse)
        d.lse = output_of(&p->lse, data);
    d.scale = p->scale;
    d.align = p->align;
    d.causal = p->causal;
    d.window = p->window;
    d.window_left = p->window ? p->left : 0;
    d.window_right = p->window ? p->right : 0;
    if (p->has_mask)
        d.key_mask = (attn_token_mask){data[BUFFER_MASK], p->mask_given};
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
    say(l, " %s=%s(%lld)[", name, s->packed ? "packed" : "padded", (long long)side_rows(s));
    for (int64_t b = 0; b < batch; b++)
        if (s->used[b] != s->room[b])
            say(l, "%s%lld/%lld", b ? " " : "", (long long)s->used[b], (long long)s->room[b]);
        else
            say(l, "%s%lld", b ? " " : "", (long long)s->used[b]);
    say(l, "]");
}

void problem_print(const struct problem *p, char *text, size_t size)
{
    struct line l = {text, size, 0};

    say(&l, "%s B=%lld H=%lld/%lld d=%lld/%lld", element_name(p->dtype),
        (long long)p->batch, (long long)p->hq, (long long)p->hkv, (long long)p->d,
        (long long)p->dv);
    say_side(&l, "q", &p->query, p->batch);
    say_side(&l, "k", &p->key, p->batch);
    if (p->causal)
        say(&l, " causal");
    if (p->window)
        say(&l, " window=%lld,%lld", (long long)p->left, (long long)p->right);
    if (p->align != ATTN_ALIGN_NONE)
        say(&l, " %s", p->align == ATTN_TOP_LEFT ? "top-left" : "bottom-right");
    if (p->has_mask)
        say(&l, " key-mask");
    if (p->scale != 0)
        say(&l, " scale=%g", p->scale);
    say(&l, " values=%s layout=%s%s", p->values, p->layout, p->has_lse ? "" : " no-lse");
}
