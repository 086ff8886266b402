/* SPDX-License-Identifier: BSD-3-Clause */
#include "args.h"

#include <string.h>

struct buffers buf;

static void fill_floats(float *x, size_t count, int seed)
{
    for (size_t n = 0; n < count; n++)
        x[n] = (float)((int)(n * 37 + (size_t)seed * 11) % 23 - 11) / 8;
}

static void fill_offsets(int32_t *cu, int32_t a, int32_t b, int32_t c)
{
    cu[0] = a;
    cu[1] = b;
    cu[2] = c;
}

static void fill_indices(void)
{
    fill_offsets(buf.cu_q, 0, 2, TQ);
    fill_offsets(buf.cu_k, 0, 7, TK);
    fill_offsets(buf.cu_falls, 0, 2, 1);
    fill_offsets(buf.cu_late, 1, 2, TQ);
    fill_offsets(buf.cu_long, 0, 2, TQ + 1);
    fill_offsets(buf.cu_negative, 0, -3, TK);
    fill_offsets(buf.bias_at, 0, HQ * 2 * 7, HQ * (2 * 7 + 4 * 3));
    fill_offsets(buf.bias_falls, 0, HQ * 2 * 7, 4);
    fill_offsets(buf.bias_close, 0, HQ * 2 * 7, HQ * (2 * 7 + 4 * 3) - 1);
    fill_offsets(buf.one_bias_close, 0, 2 * 7 - 1, HQ * 2 * 7);
    buf.cu_falls64[1] = 7;
    buf.cu_falls64[2] = 4;
    buf.used_q[0] = 2;
    buf.used_q[1] = 1;
    buf.used_k[0] = 4;
    buf.used_k[1] = 0;
    buf.used_long[0] = 1;
    buf.used_long[1] = 8;
    buf.used_long64[0] = INT64_C(1) << 32;
    buf.used_negative[0] = 2;
    buf.used_negative[1] = -1;
}

static void fill_pages(void)
{
    static const int32_t pages[B * 4] = {4, 0, -5, 99, -1, INT32_MIN, INT32_MAX, 5};
    static const int32_t late[B * 4] = {1, 1, 3, 99, 0, 0, 0, 0};
    memcpy(buf.pages, pages, sizeof pages);
    memcpy(buf.pages_late, late, sizeof late);
}

void buffers_fill(void)
{
    memset(&buf, 0, sizeof buf);
    fill_floats(buf.q, sizeof buf.q / sizeof *buf.q, 1);
    fill_floats(buf.k, sizeof buf.k / sizeof *buf.k, 2);
    fill_floats(buf.v, sizeof buf.v / sizeof *buf.v, 3);
    for (size_t n = 0; n < sizeof buf.mask; n++)
        buf.mask[n] = n % 3 != 0;
    fill_indices();
    fill_pages();
    memset(buf.out, 0xa5, sizeof buf.out);
    memset(buf.lse, 0xa5, sizeof buf.lse);
    memset(buf.probs, 0xa5, sizeof buf.probs);
    memset(buf.workspace, 0xa5, sizeof buf.workspace);
}

attn_desc sound_desc(enum base base)
{
    attn_desc d = attn_desc_init();
    d.batch = B;
    d.heads_q = HQ;
    d.heads_kv = HKV;
    d.head_dim = D;
    d.head_dim_v = DV;
    if (base == PADDED) {
        d.query.seqlen = SQ;
        d.key.seqlen = SK;
    } else {
        d.query.layout = d.key.layout = ATTN_PACKED;
        d.query.tokens = TQ;
        d.key.tokens = TK;
        d.query.cu_seqlens.data = buf.cu_q;
        d.key.cu_seqlens.data = buf.cu_k;
    }
    d.q.data = buf.q;
    d.k.data = buf.k;
    d.v.data = buf.v;
    d.out.data = buf.out;
    d.lse.data = buf.lse;
    return d;
}

attn_desc sound_backward(enum base base)
{
    attn_desc d = sound_desc(base);
    d.dout.data = buf.dout;
    d.dq.data = buf.dq;
    d.dk.data = buf.dk;
    d.dv.data = buf.dv;
    return d;
}

static void change_field(attn_desc *desc, const struct change *c)
{
    char *field = (char *)desc + c->at;
    const int32_t i32 = (int32_t)c->i;
    switch (c->kind) {
    case I32: memcpy(field, &i32, sizeof i32); break;
    case I64: memcpy(field, &c->i, sizeof c->i); break;
    case F64: memcpy(field, &c->f, sizeof c->f); break;
    case PTR: memcpy(field, &c->p, sizeof c->p); break;
    }
}

void change_desc(attn_desc *desc, const struct change *changes)
{
    for (int n = 0; n < MAX_CHANGES && changes[n].at != 0; n++)
        change_field(desc, &changes[n]);
}
