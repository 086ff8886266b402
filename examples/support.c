/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Asks the library which calls each of its backends serves, and prints the answers as a table in
 * Markdown. A call that is only explained reads no tensor, so that the tensors here are mere names.
 */
#include <attn/attn.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, S = 8, H = 2, D = 16, BACKENDS = ATTN_BACKEND_CUDA + 1 };

static const int32_t lengths[B] = {3, 8}, cu_seqlens[B + 1] = {0, 3, 8}, pages[B] = {0, 1};
static const int64_t offsets[B + 1] = {0, H * S * S, B * H * S * S};
static int32_t documents[B * S];
static double tensors[24][8]; /* never looked into */

static void see_tile(void *user, int64_t sequence, int64_t head, int64_t i0, int64_t ni, int64_t j0,
                     int64_t nj, const void *p, int64_t stride)
{
    (void)user, (void)sequence, (void)head, (void)i0, (void)ni, (void)j0, (void)nj, (void)p;
    (void)stride;
}

static attn_desc plain(void)
{
    attn_desc d = attn_desc_init();
    d.batch = B;
    d.heads_q = H;
    d.head_dim = D;
    d.query.seqlen = d.key.seqlen = S;
    d.q.data = tensors[0];
    d.k.data = tensors[1];
    d.v.data = tensors[2];
    d.out.data = tensors[3];
    return d;
}

static void set_dtype(attn_desc *d, attn_dtype t)
{
    d->q.dtype = d->k.dtype = d->v.dtype = d->out.dtype = t;
}

static void pack(attn_side *side)
{
    memset(side, 0, sizeof *side);
    side->layout = ATTN_PACKED;
    side->tokens = S;
    side->cu_seqlens.data = cu_seqlens;
}

static void f32(attn_desc *d) { set_dtype(d, ATTN_F32); }
static void f64(attn_desc *d) { set_dtype(d, ATTN_F64); }
static void f16(attn_desc *d) { set_dtype(d, ATTN_F16); }
static void bf16(attn_desc *d) { set_dtype(d, ATTN_BF16); }
static void padded(attn_desc *d) { (void)d; }

static void packed(attn_desc *d)
{
    pack(&d->query);
    pack(&d->key);
}

static void paged(attn_desc *d)
{
    memset(&d->key, 0, sizeof d->key);
    d->key.layout = ATTN_PAGED;
    d->key.pages = B;
    d->key.page_size = S;
    d->key.max_pages = 1;
    d->key.block_table.data = pages;
    d->key.seqused.data = lengths;
}

static void seqused(attn_desc *d) { d->query.seqused.data = d->key.seqused.data = lengths; }
static void gqa(attn_desc *d) { d->heads_kv = 1; }
static void value_size(attn_desc *d) { d->head_dim_v = D + 1; }

static void causal(attn_desc *d)
{
    d->causal = 1;
    d->align = ATTN_BOTTOM_RIGHT;
}

static void window(attn_desc *d)
{
    d->window = 1;
    d->window_left = 2;
    d->align = ATTN_BOTTOM_RIGHT;
}

static void key_mask(attn_desc *d) { d->key_mask.data = (const uint8_t *)tensors[4]; }
static void query_mask(attn_desc *d) { d->query_mask.data = (const uint8_t *)tensors[5]; }

static void mask(attn_desc *d)
{
    d->mask.data = tensors[6];
    d->mask.dtype = ATTN_BOOL;
    d->mask.query_stride = S;
    d->mask.key_stride = 1;
}

static void docs(attn_desc *d) { d->query_docs.data = d->key_docs.data = documents; }
static void prefix(attn_desc *d)
{
    causal(d);
    d->prefix.data = lengths;
}

static void block_mask(attn_desc *d)
{
    d->block_mask.data = tensors[7];
    d->block_mask.dtype = ATTN_BOOL;
    d->block_mask.query_stride = S / 4;
    d->block_mask.key_stride = 1;
    d->block_q = d->block_k = 4;
}

static void softcap(attn_desc *d) { d->softcap = 30; }

static void bias(attn_desc *d)
{
    d->bias.data = tensors[8];
    d->bias.query_stride = S;
    d->bias.key_stride = 1;
}

static void bias_offset(attn_desc *d)
{
    d->bias.data = tensors[8];
    d->bias_offset.data = offsets;
    d->bias_offset.type = ATTN_I64;
}

static void alibi(attn_desc *d) { d->alibi.data = tensors[9]; }
static void sink(attn_desc *d) { d->sink.data = tensors[10]; }

static void dropout(attn_desc *d)
{
    d->dropout = 0.1;
    d->dropout_seed = 1;
}

static void lse(attn_desc *d) { d->lse.data = tensors[11]; }
static void probs(attn_desc *d) { d->probs.data = tensors[12]; }
static void probs_fn(attn_desc *d) { d->probs_fn = see_tile; }
static void key_sums(attn_desc *d) { d->key_sums.data = tensors[13]; }
static void dlse(attn_desc *d) { d->dlse.data = tensors[18]; }

static void dbias(attn_desc *d)
{
    bias(d);
    d->dbias.data = tensors[19];
    d->dbias.query_stride = S;
    d->dbias.key_stride = 1;
}

static void dsink(attn_desc *d)
{
    sink(d);
    d->dsink.data = tensors[20];
}

/* Which passes look at a field. */
enum looks { BOTH, FORWARD, BACKWARD };

static const struct row {
    const char *name;
    void (*ask)(attn_desc *d);
    enum looks looks;
} rows[] = {
    {"f32", f32, BOTH},
    {"f64", f64, BOTH},
    {"f16", f16, BOTH},
    {"bf16", bf16, BOTH},
    {"padded batches", padded, BOTH},
    {"packed batches (`cu_seqlens`)", packed, BOTH},
    {"paged keys and values (`block_table`)", paged, BOTH},
    {"lengths in a padded batch (`seqused`)", seqused, BOTH},
    {"grouped heads (`heads_kv`)", gqa, BOTH},
    {"values of another head size (`head_dim_v`)", value_size, BOTH},
    {"`causal`, either alignment", causal, BOTH},
    {"sliding `window`", window, BOTH},
    {"`key_mask`", key_mask, BOTH},
    {"`query_mask`", query_mask, BOTH},
    {"boolean `mask`", mask, BOTH},
    {"documents (`query_docs`, `key_docs`)", docs, BOTH},
    {"`prefix`", prefix, BOTH},
    {"`block_mask`", block_mask, BOTH},
    {"`softcap`", softcap, BOTH},
    {"`bias`", bias, BOTH},
    {"`bias` per sequence (`bias_offset`)", bias_offset, BOTH},
    {"`alibi`", alibi, BOTH},
    {"`sink`", sink, BOTH},
    {"`dropout`", dropout, BOTH},
    {"`lse`", lse, BOTH},
    {"probabilities (`probs`)", probs, FORWARD},
    {"probabilities by tile (`probs_fn`)", probs_fn, FORWARD},
    {"column sums (`key_sums`)", key_sums, FORWARD},
    {"gradient of the LSE (`dlse`)", dlse, BACKWARD},
    {"gradient of the bias, any broadcast (`dbias`)", dbias, BACKWARD},
    {"gradient of the sinks (`dsink`)", dsink, BACKWARD},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void add_gradients(attn_desc *d)
{
    d->lse.data = tensors[11];
    d->dout.data = tensors[14];
    d->dq.data = tensors[15];
    d->dk.data = tensors[16];
    d->dv.data = tensors[17];
    d->dout.dtype = d->dq.dtype = d->dk.dtype = d->dv.dtype = d->q.dtype;
    d->lse.dtype = d->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
}

/* The status of each backend for a row and pass, by attn_backend. Returns 1 where the question
 * itself was refused. */
static int explain(const struct row *row, attn_pass pass, attn_status *status)
{
    attn_explanation e = attn_explanation_init();
    attn_desc d = plain();
    row->ask(&d);
    if (d.lse.data)
        d.lse.dtype = d.q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    if (pass == ATTN_PASS_BACKWARD)
        add_gradients(&d);
    if (attn_explain(NULL, &d, pass, &e) != ATTN_OK) {
        fprintf(stderr, "%s: %s\n", row->name, attn_last_message(NULL));
        return 1;
    }
    for (int32_t n = 0; n < e.count; n++)
        status[e.candidates[n].backend] = e.candidates[n].status;
    return 0;
}

/* What a backend does with a row, from its answers for both passes. */
static const char *word(const struct row *row, attn_status forward, attn_status backward)
{
    const int fwd = forward == ATTN_OK && row->looks != BACKWARD;
    const int bwd = backward == ATTN_OK && row->looks != FORWARD;
    return fwd && bwd ? "forward, backward" : fwd ? "forward" : bwd ? "backward" : "no";
}

int main(void)
{
    attn_status status[ROWS][2][BACKENDS];
    int failed = 0;
    for (int r = 0; r < ROWS; r++)
        for (int pass = ATTN_PASS_FORWARD; pass <= ATTN_PASS_BACKWARD; pass++) {
            for (int b = 0; b < BACKENDS; b++)
                status[r][pass][b] = ATTN_NO_BACKEND;
            failed |= explain(&rows[r], (attn_pass)pass, status[r][pass]);
        }

    printf("| |");
    for (int b = ATTN_BACKEND_CPU; b < BACKENDS; b++)
        if (status[0][0][b] != ATTN_NO_BACKEND)
            printf(" `%s` |", attn_backend_name((attn_backend)b));
    printf("\n|---|");
    for (int b = ATTN_BACKEND_CPU; b < BACKENDS; b++)
        if (status[0][0][b] != ATTN_NO_BACKEND)
            printf("---|");
    for (int r = 0; r < ROWS; r++) {
        printf("\n| %s |", rows[r].name);
        for (int b = ATTN_BACKEND_CPU; b < BACKENDS; b++)
            if (status[0][0][b] != ATTN_NO_BACKEND)
                printf(" %s |", word(&rows[r], status[r][0][b], status[r][1][b]));
    }
    printf("\n");
    return failed;
}
