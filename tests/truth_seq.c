/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of a sequence of the truth. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "truth.h"

struct truth_plane truth_plane_open(bool by_head, bool by_query, bool by_key, int64_t heads,
                                    int64_t queries, int64_t keys)
{
    const int64_t nh = by_head ? heads : 1, ni = by_query ? queries : 1, nj = by_key ? keys : 1;
    const int64_t row = nj ? nj : 1, head = ni ? ni * row : row;
    struct truth_plane p = {.key = by_key ? 1 : 0, .query = by_query ? row : 0,
                            .head = by_head ? head : 0, .count = nh * ni * nj};

    p.x = test_alloc((size_t)p.count * sizeof *p.x);
    return p;
}

void truth_seq_free(struct truth_seq *s)
{
    void *const arrays[] = {s->q, s->kt, s->v, s->key_mask, s->query_mask, s->query_docs,
                            s->key_docs, s->mask.x, s->block.x, s->bias.x, s->slopes, s->sink,
                            s->dout, s->dlse, s->out, s->lse};

    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++)
        free(arrays[n]);
    memset(s, 0, sizeof *s);
}

static void *copied(const void *x, int64_t count, size_t element)
{
    if (!x)
        return NULL;
    void *y = test_alloc((size_t)count * element);
    memcpy(y, x, (size_t)count * element);
    return y;
}

struct truth_seq truth_seq_copy(const struct truth_seq *f)
{
    struct truth_seq s = *f;

    s.q = copied(f->q, f->hq * f->nq * f->d, sizeof *f->q);
    s.kt = copied(f->kt, f->hkv * f->nk * f->d, sizeof *f->kt);
    s.v = copied(f->v, f->hkv * f->nk * f->dv, sizeof *f->v);
    s.key_mask = copied(f->key_mask, f->nk, 1);
    s.query_mask = copied(f->query_mask, f->nq, 1);
    s.query_docs = copied(f->query_docs, f->nq, sizeof *f->query_docs);
    s.key_docs = copied(f->key_docs, f->nk, sizeof *f->key_docs);
    s.mask.x = copied(f->mask.x, f->mask.count, sizeof *f->mask.x);
    s.block.x = copied(f->block.x, f->block.count, sizeof *f->block.x);
    s.bias.x = copied(f->bias.x, f->bias.count, sizeof *f->bias.x);
    s.slopes = copied(f->slopes, f->hq, sizeof *f->slopes);
    s.sink = copied(f->sink, f->hq, sizeof *f->sink);
    s.dout = copied(f->dout, f->hq * f->nq * f->dv, sizeof *f->dout);
    s.dlse = copied(f->dlse, f->hq * f->nq, sizeof *f->dlse);
    s.out = copied(f->out, f->hq * f->nq * f->dv, sizeof *f->out);
    s.lse = copied(f->lse, f->hq * f->nq, sizeof *f->lse);
    return s;
}
