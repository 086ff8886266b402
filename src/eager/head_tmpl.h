/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Attention of one sequence and query head, for one element type. Included once per type, with
 *     REAL       the type
 *     NAME(x)    x with the type's name appended
 *     GEMM       its product of matrices, as cblas_sgemm
 *     EXP, LOG   its functions of the C library, as expf and logf
 */

/* Matrices of the head, row-major; ld: elements from row to row. */
struct NAME(matrices) {
    int64_t nq, nk, d, dv;
    const REAL *q, *k, *v;
    int64_t ldq, ldk, ldv;
    REAL *out;
    int64_t ldo;
    REAL *scores;         /* [nq][nk]; then the probabilities */
    REAL *lse;            /* [nq] */
    struct attn_band band;
    const uint8_t *mask;  /* [nk] or null */
};

/* The first `rows` tokens as a matrix that the BLAS takes, in place or copied to `buffer`. */
static const REAL *NAME(as_matrix)(const struct attn_view *view, const struct attn_axis *axis,
                                   int64_t b, int64_t h, int64_t rows, int64_t cols, REAL *buffer,
                                   int64_t *ld)
{
    const REAL *from = (const REAL *)attn_view_at(view, axis, b, 0, h, sizeof(REAL));
    *ld = fits_blas(view, cols) ? view->token : cols;
    if (fits_blas(view, cols))
        return from;
    for (int64_t t = 0; t < rows; t++)
        memcpy(buffer + t * cols, from + t * view->token, (size_t)cols * sizeof(REAL));
    return buffer;
}

static void NAME(gather)(struct NAME(matrices) *m, const struct attn_problem *p,
                         const struct room *room, char *part, int64_t b, int64_t h)
{
    m->d = p->head_dim;
    m->dv = p->head_dim_v;
    m->scores = (REAL *)(part + room->scores);
    m->lse = (REAL *)(part + room->lse);
    m->q = NAME(as_matrix)(&p->q, &p->query, b, h, m->nq, m->d, (REAL *)(part + room->q), &m->ldq);
    if (m->nk > 0) {
        const int64_t kv = h / p->group;
        m->k = NAME(as_matrix)(&p->k, &p->key, b, kv, m->nk, m->d, (REAL *)(part + room->k),
                               &m->ldk);
        m->v = NAME(as_matrix)(&p->v, &p->key, b, kv, m->nk, m->dv, (REAL *)(part + room->v),
                               &m->ldv);
    }
    m->ldo = fits_blas(&p->out, m->dv) ? p->out.token : m->dv;
    m->out = fits_blas(&p->out, m->dv)
                 ? (REAL *)attn_view_at(&p->out, &p->query, b, 0, h, sizeof(REAL))
                 : (REAL *)(part + room->out);
    m->band = attn_band_of(p->rule, m->nq, m->nk);
    m->mask = attn_key_mask_of(p, b);
}

/* Scores q . k of one row become probabilities, those of keys that are not seen 0 whatever stands
 * there; returns the LSE. Scaled in double, so that no scale over- or underflows by itself. */
static REAL NAME(softmax)(REAL *s, int64_t nk, struct attn_range see, const uint8_t *mask,
                          double scale)
{
    REAL max = -INFINITY, sum = 0;
    bool sound = true; /* no score that is seen is NaN or +inf */
    for (int64_t j = see.lo; j < see.hi; j++) {
        if (mask && !mask[j])
            continue;
        s[j] = (REAL)(scale * (double)s[j]);
        sound = sound && s[j] < INFINITY;
        max = s[j] > max ? s[j] : max;
    }
    memset(s, 0, (size_t)see.lo * sizeof *s);
    memset(s + see.hi, 0, (size_t)(nk - see.hi) * sizeof *s);
    if (!sound || max == -INFINITY) {
        for (int64_t j = see.lo; j < see.hi; j++)
            s[j] = sound || (mask && !mask[j]) ? 0 : NAN;
        return sound ? -INFINITY : NAN;
    }
    for (int64_t j = see.lo; j < see.hi; j++) {
        s[j] = mask && !mask[j] ? 0 : EXP(s[j] - max);
        sum += s[j];
    }
    for (int64_t j = see.lo; j < see.hi; j++)
        s[j] /= sum;
    return max + LOG(sum);
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
static void NAME(mix_seen)(const struct NAME(matrices) *m, int64_t i)
{
    const struct attn_range see = attn_band_row(m->band, i);
    const REAL *p = m->scores + i * m->nk;
    REAL *out = m->out + i * m->ldo;
    memset(out, 0, (size_t)m->dv * sizeof *out);
    if (m->lse[i] == -INFINITY)
        return;
    for (int64_t j = see.lo; j < see.hi; j++) {
        const REAL *v = m->v + j * m->ldv;
        if (m->mask && !m->mask[j])
            continue;
        for (int64_t c = 0; c < m->dv; c++)
            out[c] += p[j] * v[c];
    }
}

static void NAME(compute)(const struct NAME(matrices) *m, double scale)
{
    const int nq = (int)m->nq, nk = (int)m->nk, d = (int)m->d, dv = (int)m->dv;
    if (nk > 0)
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, nq, nk, d, 1, m->q, (int)m->ldq, m->k,
             (int)m->ldk, 0, m->scores, nk);
    for (int64_t i = 0; i < m->nq; i++)
        m->lse[i] = NAME(softmax)(m->scores + i * m->nk, m->nk, attn_band_row(m->band, i), m->mask,
                                  scale);
    if (nk > 0)
        GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, nq, dv, nk, 1, m->scores, nk, m->v,
             (int)m->ldv, 0, m->out, (int)m->ldo);
    for (int64_t i = 0; i < m->nq; i++)
        if (nk == 0 || !NAME(all_finite)(m->out + i * m->ldo, m->dv))
            NAME(mix_seen)(m, i);
}

/* What is not in the tensors yet: LSE, and out where the BLAS could not write there. */
static void NAME(scatter)(const struct NAME(matrices) *m, const struct attn_problem *p, int64_t b,
                          int64_t h)
{
    for (int64_t i = 0; i < m->nq; i++) {
        char *out = attn_view_at(&p->out, &p->query, b, i, h, sizeof(REAL));
        if (!fits_blas(&p->out, m->dv))
            memcpy(out, m->out + i * m->ldo, (size_t)m->dv * sizeof(REAL));
        if (p->lse.data)
            *(REAL *)attn_view_at(&p->lse, &p->query, b, i, h, sizeof(REAL)) = m->lse[i];
    }
}

/* The head's probabilities, 0 at rows and keys past the sequence's lengths. */
static void NAME(write_probs)(const struct attn_problem *p, const REAL *probs, int64_t nq,
                              int64_t nk, int64_t b, int64_t h)
{
    const struct attn_score_view *view = &p->probs;
    REAL *to = (REAL *)view->data + b * view->batch + h * view->head;
    const int64_t rows = p->query.span, cols = p->key.span;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            to[i * view->query + j * view->key] = i < nq && j < nk ? probs[i * nk + j] : 0;
}

static void NAME(head)(const struct attn_problem *p, const struct room *room, char *part, int64_t b,
                       int64_t h)
{
    struct NAME(matrices) m = {.nq = attn_axis_len(&p->query, b), .nk = attn_axis_len(&p->key, b)};
    if (m.nq > 0) {
        NAME(gather)(&m, p, room, part, b, h);
        NAME(compute)(&m, p->scale);
        NAME(scatter)(&m, p, b, h);
    }
    if (p->probs.data)
        NAME(write_probs)(p, m.scores, m.nq, m.nk, b, h);
}

#undef REAL
#undef NAME
#undef GEMM
#undef EXP
#undef LOG
