/* SPDX-License-Identifier: BSD-3-Clause */
/* Philox against published vectors, the keep mask against one draw per key, and what is dropped of
 * a row of NaN. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "expect.h"
#include "memory.h"
#include "philox.h"

/* Random123's known answers for philox4x32-10. */
static void test_vectors(void)
{
    static const struct {
        struct attn_philox counter;
        uint32_t key[2];
        struct attn_philox expected;
    } vectors[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, {0xffffffff, 0xffffffff},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t n = 0; n < sizeof vectors / sizeof *vectors; n++) {
        const uint32_t *key = vectors[n].key, *want = vectors[n].expected.word;
        const struct attn_philox got = attn_philox4x32(vectors[n].counter, key[0], key[1]);
        EXPECT(memcmp(got.word, want, sizeof got.word) == 0,
               "vector %zu: %08x %08x %08x %08x, expected %08x %08x %08x %08x", n, got.word[0],
               got.word[1], got.word[2], got.word[3], want[0], want[1], want[2], want[3]);
    }
    /* The third one again, through the words that dropout makes of seed, offset and place. */
    const struct attn_philox draws = attn_draws(UINT64_C(0x299f31d0a4093822), 0x03707344,
                                                0x13198a2e, 0x85a308d3, 0x243f6a88);
    EXPECT(memcmp(draws.word, vectors[2].expected.word, sizeof draws.word) == 0,
           "draws take seed, offset and place in another order");
}

enum { B = 3, HQ = 2, SQ = 4, SK = 9, PLACES = B * HQ * SQ * SK };
static const int32_t used_q[B] = {4, 0, 2}, used_k[B] = {9, 5, 6};
static const int32_t cu_q[B + 1] = {0, 4, 4, 6}, cu_k[B + 1] = {0, 9, 14, 20};

static attn_desc desc_of(double dropout)
{
    attn_desc d = attn_desc_init();
    d.batch = B;
    d.heads_q = HQ;
    d.head_dim = 8;
    d.query.seqlen = SQ;
    d.key.seqlen = SK;
    d.query.seqused.data = used_q;
    d.key.seqused.data = used_k;
    d.dropout = dropout;
    d.dropout_seed = UINT64_C(0x123456789abcdef0);
    d.dropout_offset = 77;
    d.first_sequence = 5;
    return d;
}

/* Whether a place is kept by the definition. */
static bool kept(const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct attn_philox counter = {{(uint32_t)(j / 4), (uint32_t)i,
                                         (uint32_t)((d->first_sequence + b) * HQ + h),
                                         d->dropout_offset}};
    const struct attn_philox draws = attn_philox4x32(counter, (uint32_t)d->dropout_seed,
                                                     (uint32_t)(d->dropout_seed >> 32));
    return (double)draws.word[j % 4] / 4294967296.0 >= d->dropout;
}

/* `strides` in the order of the mask's; the bytes between its elements stay as they are. */
static void check_mask(const char *name, attn_context *c, const attn_desc *d,
                       const int64_t *strides, int64_t bytes)
{
    uint8_t *mask = test_alloc((size_t)bytes), *expected = test_alloc((size_t)bytes);
    attn_score_output keep = {mask, ATTN_BOOL, 0, 0, 0, 0};
    const int64_t dense[] = {HQ * SQ * SK, SQ * SK, SK, 1};
    const int64_t *s = strides ? strides : dense;
    memset(mask, 0xa5, (size_t)bytes);
    memset(expected, 0xa5, (size_t)bytes);
    for (int64_t n = 0; n < PLACES; n++) {
        const int64_t b = n / SK / SQ / HQ, h = n / SK / SQ % HQ, i = n / SK % SQ, j = n % SK;
        expected[b * s[0] + h * s[1] + i * s[2] + j * s[3]] =
            i < used_q[b] && j < used_k[b] && kept(d, b, h, i, j);
    }
    if (strides) {
        keep.batch_stride = s[0];
        keep.head_stride = s[1];
        keep.query_stride = s[2];
        keep.key_stride = s[3];
    }
    const attn_status got = attn_dropout_mask(c, d, &keep);
    EXPECT(got == ATTN_OK, "%s: %s", name, attn_last_message(c));
    EXPECT(memcmp(mask, expected, (size_t)bytes) == 0, "%s: not the mask by definition", name);
    free(mask);
    free(expected);
}

static void test_masks(attn_context *c)
{
    static const double rates[] = {0, 1e-10, 0.1, 0.5, 0.999, 1};
    static const int64_t across[] = {1, B, B * HQ * SK, B * HQ}; /* [Sq, Sk, Hq, B] */
    static const int64_t apart[] = {5000, 1000, 200, 3};
    for (size_t n = 0; n < sizeof rates / sizeof *rates; n++) {
        attn_desc d = desc_of(rates[n]);
        check_mask("padded", c, &d, NULL, PLACES);
        check_mask("keys before heads", c, &d, across, PLACES);
        check_mask("wide strides", c, &d, apart, B * 5000);
        d.query.layout = d.key.layout = ATTN_PACKED;
        d.query.seqlen = d.key.seqlen = 0;
        d.query.seqused.data = d.key.seqused.data = NULL;
        d.query.tokens = cu_q[B];
        d.key.tokens = cu_k[B];
        d.query.cu_seqlens.data = cu_q;
        d.key.cu_seqlens.data = cu_k;
        check_mask("packed", c, &d, NULL, PLACES);
    }
}

/* The threshold, exactly: p 2^32 keeps the draw that it equals and drops the one below. */
static void test_threshold(void)
{
    static const uint32_t draws[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    attn_desc d = attn_desc_init();
    uint8_t mask[4];
    const attn_score_output keep = {mask, ATTN_BOOL, 0, 0, 0, 0};
    d.batch = d.heads_q = d.head_dim = d.query.seqlen = 1;
    d.key.seqlen = 4;
    for (int j = 0; j < 4; j++)
        for (int above = 0; above < 2; above++) {
            d.dropout = ((double)draws[j] + above) / 4294967296.0;
            const attn_status got = attn_dropout_mask(NULL, &d, &keep);
            EXPECT(got == ATTN_OK && mask[j] == !above, "draw %08x, p 2^32 %s: %s, byte %d",
                   draws[j], above ? "one more" : "the same", attn_status_name(got), mask[j]);
        }
}

/* Enough rows for several threads, of a batch and of its last sequence alone. */
static void test_threads(attn_context *c)
{
    enum { HEADS = 3, N = 301, SIZE = HEADS * N * N };
    uint8_t *batch = test_alloc(2 * SIZE), *alone = test_alloc(SIZE);
    attn_score_output keep = {batch, ATTN_BOOL, 0, 0, 0, 0};
    attn_desc d = attn_desc_init();
    d.batch = 2;
    d.heads_q = HEADS;
    d.head_dim = 1;
    d.query.seqlen = d.key.seqlen = N;
    d.dropout = 0.25;
    EXPECT(attn_dropout_mask(c, &d, &keep) == ATTN_OK, "%s", attn_last_message(c));
    d.batch = 1;
    d.first_sequence = 1;
    keep.data = alone;
    EXPECT(attn_dropout_mask(NULL, &d, &keep) == ATTN_OK, "%s", attn_last_message(NULL));
    EXPECT(memcmp(batch + SIZE, alone, SIZE) == 0, "a sequence alone draws otherwise");
    int64_t sum = 0;
    for (int64_t n = 0; n < 2 * SIZE; n++)
        sum += batch[n];
    /* The deviation of such a mean is below 0.0006. */
    const double mean = (double)sum / (2 * SIZE);
    EXPECT(mean > 0.747 && mean < 0.753, "%g of 0.75 kept", mean);
    free(batch);
    free(alone);
}

/* A row of NaN reaches the gradient of every value that it sees, dropped or not. */
static void test_nan_row(attn_backend backend)
{
    enum { NQ = 5, NK = 11, D = 4 };
    float q[NQ * D], k[NK * D], out[NQ * D], lse[NQ], dq[NQ * D], dk[NK * D], dv[NK * D];
    attn_options options = attn_options_init();
    attn_context *c = NULL;
    attn_desc d = attn_desc_init();
    options.backend = backend;
    EXPECT(attn_context_create(&c, &options) == ATTN_OK, "no context");
    for (int n = 0; n < NQ * D; n++)
        q[n] = (float)(n % 7) - 3;
    for (int n = 0; n < NK * D; n++)
        k[n] = (float)(n % 5) - 2;
    q[2 * D + 1] = NAN;
    d.batch = d.heads_q = 1;
    d.head_dim = D;
    d.query.seqlen = NQ;
    d.key.seqlen = NK;
    d.dropout = 0.5;
    d.q.data = q;
    d.dout.data = k; /* as many, and finite */
    d.k.data = d.v.data = k;
    d.out.data = out;
    d.lse.data = lse;
    d.dq.data = dq;
    d.dk.data = dk;
    d.dv.data = dv;
    attn_status s = attn_forward(c, &d);
    if (s == ATTN_NO_BACKEND) {
        report_skip("backend %s: not built in", attn_backend_name(backend));
    } else {
        s = s == ATTN_OK ? attn_backward(c, &d) : s;
        EXPECT(s == ATTN_OK, "%s: %s", attn_backend_name(backend), attn_last_message(c));
        for (int n = 0; s == ATTN_OK && n < NK * D; n++)
            EXPECT(isnan(dv[n]), "%s: dv of key %d, column %d: %g, of a row of NaN",
                   attn_backend_name(backend), n / D, n % D, (double)dv[n]);
    }
    attn_context_destroy(c);
}

int main(void)
{
    attn_options options = attn_options_init();
    attn_context *c = NULL;
    report_begin("dropout");
    options.threads = 3;
    EXPECT(attn_context_create(&c, &options) == ATTN_OK, "no context");
    test_vectors();
    test_masks(c);
    test_masks(NULL);
    test_threshold();
    test_threads(c);
    test_nan_row(ATTN_BACKEND_CPU);
    test_nan_row(ATTN_BACKEND_EAGER);
    attn_context_destroy(c);
    return report_end();
}
