/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Attention of one sequence and query head, for one computing type. Included once per type, with
 *     REAL         the type
 *     NAME(x)      x with the type's name appended
 *     GEMM         its product of matrices, as cblas_sgemm
 *     TANH         its function of the C library, as tanhf
 */
#include "row_tmpl.h"

/* Matrices of the head, row-major; ld: elements from row to row. */
struct NAME(matrices) {
    int64_t nq, nk, d, dv;
    const REAL *q, *k, *v;
    int64_t ldq, ldk, ldv;
    REAL *out;
    int64_t ldo;
    REAL *scores;  /* [nq][nk]; then the probabilities */
    REAL *lse;     /* [nq] */
    uint8_t *kind; /* [nq], enum row_kind */
    REAL *bias;    /* [nk], room for a row */
    double *sums;  /* [nk], of the columns of the probabilities; or those that make dbias */
};

/* The first `rows` tokens as a matrix that the BLAS takes, in place or copied to `buffer`. */
static const REAL *NAME(as_matrix)(const struct attn_problem *p, const struct attn_view *view,
                                   const struct attn_axis *axis, int64_t b, int64_t h, int64_t rows,
                                   int64_t cols, REAL *buffer, int64_t *ld)
{
    const int64_t size = attn_dtype_size(p->dtype);
    *ld = in_place(p, view, axis, cols) ? view->token : cols;
    if (in_place(p, view, axis, cols))
        return (const REAL *)attn_view_at(view, axis, b, 0, h, size);
    for (int64_t t = 0; t < rows; t++)
        NAME(load)(buffer + t * cols, attn_view_at(view, axis, b, t, h, size), p->dtype, 1, cols);
    return buffer;
}

/* The first `rows` tokens of an output as a matrix for the BLAS to write: in place, or `buffer`. */
static REAL *NAME(as_result)(const struct attn_problem *p, const struct attn_view *view,
                             const struct attn_axis *axis, int64_t b, int64_t h, int64_t rows,
                             int64_t cols, REAL *buffer, int64_t *ld)
{
    const bool direct = rows > 0 && in_place(p, view, axis, cols);
    *ld = direct ? view->token : cols;
    return direct ? (REAL *)attn_view_at(view, axis, b, 0, h, sizeof(REAL)) : buffer;
}

/* Brings such a matrix into its tensor, unless it is there. */
static void NAME(put_back)(const struct attn_problem *p, const struct attn_view *view,
                           const struct attn_axis *axis, int64_t b, int64_t h, int64_t rows,
                           int64_t cols, const REAL *buffer)
{
    const int64_t size = attn_dtype_size(p->dtype);
    if (in_place(p, view, axis, cols))
        return;
    for (int64_t t = 0; t < rows; t++)
        NAME(store)(attn_view_at(view, axis, b, t, h, size), p->dtype, 1, buffer + t * cols, cols);
}

/* What goes into the scores, and the values. */
static struct NAME(matrices) NAME(gather)(const struct head *t, const struct room *room, char *part)
{
    const struct attn_problem *p = t->s.p;
    const int64_t b = t->s.b, kv = t->h / p->group;
    struct NAME(matrices) m = {.nq = t->s.nq, .nk = t->s.nk, .d = p->head_dim, .dv = p->head_dim_v};
    m.scores = (REAL *)(part + room->scores);
    m.bias = (REAL *)(part + room->bias);
    m.sums = (double *)(part + room->sums);
    if (m.nq > 0)
        m.q = NAME(as_matrix)(p, &p->q, &p->query, b, t->h, m.nq, m.d, (REAL *)(part + room->q),
                              &m.ldq);
    if (m.nq > 0 && m.nk > 0) {
        m.k = NAME(as_matrix)(p, &p->k, &p->key, b, kv, m.nk, m.d, (REAL *)(part + room->k),
                              &m.ldk);
        m.v = NAME(as_matrix)(p, &p->v, &p->key, b, kv, m.nk, m.dv, (REAL *)(part + room->v),
                              &m.ldv);
    }
    return m;
}

static bool NAME(all_finite)(const REAL *x, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        if (!isfinite(x[c]))
            return false;
    return true;
}

/* out[i] from the keys that row i sees and no other: in the GEMM the zero weight of a hidden value
 * that is NaN or infinite gives NaN. */
static void NAME(mix_seen)(const struct NAME(matrices) *m, const struct head *t, int64_t i)
{
    const struct attn_range see = keys_of(t, i);
    const REAL *p = m->scores + i * m->nk;
    REAL *out = m->out + i * m->ldo;
    for (int64_t c = 0; c < m->dv; c++)
        out[c] = m->kind[i] == ROW_NAN ? (REAL)NAN : 0;
    if (m->kind[i] != ROW_SOUND)
        return;
    for (int64_t j = see.lo; j < see.hi; j++) {
        const REAL *v = m->v + j * m->ldv;
        if (!head_sees(t, i, j))
            continue;
        for (int64_t c = 0; c < m->dv; c++)
            out[c] += p[j] * v[c];
    }
}

/* The products of queries with keys, where there are any. */
static void NAME(multiply)(const struct NAME(matrices) *m, const struct head *t)
{
    if (m->nq > 0 && m->nk > 0)
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m->nq, (int)m->nk, (int)m->d,
             (REAL)t->sign, m->q, (int)m->ldq, m->k, (int)m->ldk, 0, m->scores, (int)m->nk);
}

static void NAME(compute)(const struct NAME(matrices) *m, const struct head *t)
{
    const int nq = (int)m->nq, nk = (int)m->nk, dv = (int)m->dv;
    NAME(multiply)(m, t);
    for (int64_t i = 0; i < m->nq; i++)
        m->kind[i] = (uint8_t)NAME(finish_row)(t, i, m->scores + i * m->nk, m->bias, &m->lse[i]);
    if (nk > 0)
        GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, nq, dv, nk, 1, m->scores, nk, m->v,
             (int)m->ldv, 0, m->out, (int)m->ldo);
    for (int64_t i = 0; i < m->nq; i++)
        if (m->kind[i] != ROW_SOUND || !NAME(all_finite)(m->out + i * m->ldo, m->dv))
            NAME(mix_seen)(m, t, i);
}

/* What is not in the tensors yet: LSE, and out where the BLAS could not write there. */
static void NAME(scatter)(const struct NAME(matrices) *m, const struct head *t)
{
    const struct attn_problem *p = t->s.p;
    NAME(put_back)(p, &p->out, &p->query, t->s.b, t->h, m->nq, m->dv, m->out);
    for (int64_t i = 0; p->lse.data && i < m->nq; i++)
        *(REAL *)attn_view_at(&p->lse, &p->query, t->s.b, i, t->h, sizeof(REAL)) = m->lse[i];
}

/* The head's probabilities, 0 at rows and keys past the sequence's lengths. */
static void NAME(write_probs)(const struct NAME(matrices) *m, const struct head *t)
{
    const struct attn_problem *p = t->s.p;
    const struct attn_score_view *view = &p->probs;
    const int64_t size = attn_dtype_size(p->dtype);
    const REAL zero = 0;
    for (int64_t i = 0; i < p->query.span; i++) {
        char *to = view->data + attn_score_at(view, t->s.b, t->h, i, 0) * size;
        const int64_t n = i < m->nq ? m->nk : 0;
        NAME(store)(to, p->dtype, view->key, m->scores + i * m->nk, n);
        for (int64_t j = n; j < p->key.span; j++)
            NAME(store)(to + j * view->key * size, p->dtype, 1, &zero, 1);
    }
}

/* The sum of each key's probabilities over the queries. */
static void NAME(write_sums)(const struct NAME(matrices) *m, const struct head *t)
{
    const struct attn_view *view = &t->s.p->key_sums;
    REAL *to =
        (REAL *)view->data + attn_number_index(view, &t->s.p->key, t->s.b, 0, t->h);
    memset(m->sums, 0, (size_t)m->nk * sizeof *m->sums);
    for (int64_t i = 0; i < m->nq; i++)
        for (int64_t j = 0; j < m->nk; j++)
            m->sums[j] += (double)m->scores[i * m->nk + j];
    for (int64_t j = 0; j < m->nk; j++)
        to[j * view->token] = (REAL)m->sums[j];
}

static void NAME(head)(const struct head *t, const struct room *room, char *part)
{
    const struct attn_problem *p = t->s.p;
    struct NAME(matrices) m = NAME(gather)(t, room, part);
    m.lse = (REAL *)(part + room->lse);
    m.kind = (uint8_t *)(part + room->kind);
    m.out = NAME(as_result)(p, &p->out, &p->query, t->s.b, t->h, m.nq, m.dv,
                            (REAL *)(part + room->out), &m.ldo);
    if (m.nq > 0) {
        NAME(compute)(&m, t);
        NAME(scatter)(&m, t);
    }
    if (p->probs.data)
        NAME(write_probs)(&m, t);
    if (p->key_sums.data)
        NAME(write_sums)(&m, t);
    if (p->probs_fn && m.nq > 0 && m.nk > 0)
        p->probs_fn(p->probs_user, t->s.b, t->h, 0, m.nq, 0, m.nk, m.scores, m.nk);
}

#include "grad_tmpl.h"

#undef REAL
#undef NAME
#undef GEMM
#undef TANH
