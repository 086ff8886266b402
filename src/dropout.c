/* SPDX-License-Identifier: BSD-3-Clause */
/* What dropout draws, apart from any backend: whether the counter has room, and the keep mask. */
#include <stdio.h>

#include "check.h"
#include "context.h"
#include "fpenv.h"
#include "parallel.h"
#include "philox.h"

#define WORD_VALUES (INT64_C(1) << 32)

bool attn_dropout_fits(const struct attn_problem *p, char *reason, size_t size)
{
    int64_t heads;
    if (__builtin_add_overflow(p->dropout.first_sequence, p->batch, &heads) ||
        __builtin_mul_overflow(heads, p->heads_q, &heads))
        heads = INT64_MAX;
    const struct {
        const char *name;
        int64_t value, most;
    } words[] = {
        {"(first_sequence + batch) * heads_q", heads, WORD_VALUES},
        {"the longest query length", p->query.max, WORD_VALUES},
        {"the longest key length", p->key.max, 4 * WORD_VALUES},
    };
    for (size_t n = 0; n < sizeof words / sizeof words[0]; n++)
        if (words[n].value > words[n].most) {
            snprintf(reason, size, "dropout: %s is %lld, but the counter has room for %lld",
                     words[n].name, (long long)words[n].value, (long long)words[n].most);
            return false;
        }
    return true;
}

/* The bytes to write, row by row: query i of head h of sequence b. */
struct keep {
    const struct attn_problem *p;
    struct attn_score_view view;
    int64_t rows; /* B * Hq * Sq */
};

enum { THREAD_PLACES = 65536 }; /* fewer are not worth another thread */

static void keep_row(const struct keep *k, int64_t b, int64_t h, int64_t i)
{
    const struct attn_problem *p = k->p;
    const struct attn_dropout *d = &p->dropout;
    const struct attn_score_view *v = &k->view;
    const int64_t nk = i < attn_axis_len(&p->query, b) ? attn_axis_len(&p->key, b) : 0;
    const int64_t bh = (d->first_sequence + b) * p->heads_q + h;
    char *row = v->data + b * v->batch + h * v->head + i * v->query;
    for (int64_t j = 0; j < nk; j += 4) {
        const struct attn_philox draws = attn_draws(d->seed, d->offset, bh, i, j >> 2);
        for (int64_t lane = 0; lane < 4 && j + lane < nk; lane++)
            row[(j + lane) * v->key] = draws.word[lane] >= d->least;
    }
    for (int64_t j = nk; j < p->key.span; j++)
        row[j * v->key] = 0;
}

static void keep_rows(void *arg, int32_t thread, int32_t team)
{
    const struct keep *k = arg;
    const int64_t nq = k->p->query.span, heads = k->p->heads_q;
    const int64_t each = k->rows / team, more = k->rows % team; /* so many threads have one more */
    const int64_t first = thread * each + (thread < more ? thread : more);
    for (int64_t r = first; r < first + each + (thread < more); r++)
        keep_row(k, r / nq / heads, r / nq % heads, r % nq);
}

static attn_status dropout_mask(attn_context *context, const attn_desc *desc,
                                const attn_score_output *given)
{
    struct attn_call call;
    struct attn_problem p;
    struct keep k = {.p = &p};
    char reason[192];
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = attn_check_keep(desc, given, &p, &k.view, call.message);
    if (status != ATTN_OK)
        return status;
    if (p.dropout.on && !attn_dropout_fits(&p, reason, sizeof reason))
        return attn_say(call.message, ATTN_UNSUPPORTED, "%s", reason);
    if (!p.batch || !p.heads_q || !p.query.span || !p.key.span)
        return ATTN_OK;
    k.rows = p.batch * p.heads_q * p.query.span; /* fits: no two share a byte */
    const int64_t most = 1 + k.rows / (1 + THREAD_PLACES / p.key.span);
    attn_parallel(most < call.settings->threads ? (int32_t)most : call.settings->threads,
                  keep_rows, &k);
    return ATTN_OK;
}

attn_status attn_dropout_mask(attn_context *context, const attn_desc *desc,
                              const attn_score_output *keep)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = dropout_mask(context, desc, keep);
    attn_fpenv_leave(env);
    return status;
}
