/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Problems whose results are known, for the tiles of each pair of head sizes that there is: what
 * random ones meet too seldom to find a fault of every shape. Value j is 1 in one column, so that
 * out counts keys; or every query finds one key alone.
 */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "element.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "hopper.h"

enum { H = 3, GROUP = 4, SQ = HOPPER_QUERIES, SK = HOPPER_KEYS, LONG = 1100, MOST = 256 };
enum { B = 3 };

/* One type will do for each: in the kernels they differ in nothing else. */
static const struct shape {
    int d, dv;
    attn_dtype type;
} shapes[HOPPER_SHAPES] = {{64, 64, ATTN_F16},    {96, 96, ATTN_BF16},  {128, 64, ATTN_F16},
                           {128, 128, ATTN_BF16}, {192, 128, ATTN_F16}, {192, 192, ATTN_BF16},
                           {256, 256, ATTN_F16}};
static struct shape now = {64, 64, ATTN_F16};

static struct {
    _Alignas(64) uint16_t q[SQ * H * GROUP * MOST], k[LONG * MOST], v[LONG * MOST];
    uint16_t out[SQ * H * GROUP * MOST];
    float lse[SQ * H * GROUP], bias[SK];
    int32_t query_docs[SQ], key_docs[SK], table[20], used, cu_q[B + 1], cu_k[B + 1];
    uint8_t key_mask[SK];
} t;

static void set(uint16_t *x, int64_t at, double to) { element_set(now.type, x, at, to); }
static double get(int64_t at) { return element_get(now.type, t.out, at); }

/* q, out and LSE are [SQ, H, D], k and v [H, SK, D]. */
attn_desc hopper_desc(int heads)
{
    attn_desc d = attn_desc_init();
    d.batch = 1;
    d.heads_q = heads;
    d.head_dim = now.d;
    d.head_dim_v = now.dv;
    d.query.seqlen = SQ;
    d.key.seqlen = SK;
    d.q = (attn_input){.data = t.q, .token_stride = heads * now.d, .head_stride = now.d};
    d.k = (attn_input){.data = t.k, .token_stride = now.d, .head_stride = SK * now.d};
    d.v = (attn_input){.data = t.v, .token_stride = now.dv, .head_stride = SK * now.dv};
    d.out = (attn_output){.data = t.out, .token_stride = heads * now.dv, .head_stride = now.dv};
    d.lse = (attn_output){.data = t.lse, .token_stride = heads, .head_stride = 1};
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = now.type;
    d.scale = 1;
    return d;
}

void hopper_own(bool device) { emulated_own(&t, sizeof t, device ? 0 : -1, 0); }

void hopper_clear_out(void) { memset(t.out, 0xff, sizeof t.out); }

/* Where value `key` is not 0; no tile has the columns of another. */
static int column_of(int key) { return (key + key / 64) % now.dv; }

/* All zeros, but for values of so many keys of each head. */
static void clear(int keys, double number)
{
    memset(&t, 0, sizeof t);
    for (int n = 0; n < LONG; n++)
        set(t.v, n * now.dv + column_of(n % keys), number);
    hopper_clear_out();
}

void hopper_clear(void) { clear(SK, 1); }

/* In a workspace of numbers too large to be any index. */
static bool computes(const attn_desc *d)
{
    attn_desc call = *d;
    hopper_own(true);
    bool done = attn_workspace_size(NULL, d, ATTN_PASS_FORWARD, &call.workspace_bytes) == ATTN_OK;
    cudaMalloc(&call.workspace, call.workspace_bytes);
    memset(call.workspace, 0x3f, call.workspace_bytes);
    done = done && attn_forward(NULL, &call) == ATTN_OK &&
           cudaStreamSynchronize(NULL) == cudaSuccess;
    cudaFree(call.workspace);
    hopper_own(false);
    return done;
}

/* ---- Means of values ------------------------------------------------------------------------- */

/* Weights of keys, which are e^(score - top), and what they are divided by; 0: their sum. What a
 * value has in its column. */
struct mean {
    double (*weight)(int query, int key);
    double top, sum, value;
};

/* Whether LSEs, and rows of out, are right but for the rounding of weights and results. */
static bool is_mean(const attn_desc *d, const struct mean *m)
{
    const double exact = ldexp(1, 1 - element_format(now.type)->digits);
    bool good = true;
    for (int64_t n = 0; n < d->query.seqlen * d->heads_q; n++) {
        double column[MOST] = {0}, sum = 0;
        for (int j = 0; j < d->key.seqlen; j++) {
            const double weight = m->weight((int)(n / d->heads_q), j);
            column[column_of(j)] += weight;
            sum += weight;
        }
        sum = m->sum > 0 ? m->sum : sum;
        for (int c = 0; c < now.dv; c++) {
            const double x = column[c] / sum * m->value;
            good = good && fabs(get(n * now.dv + c) - x) <= x * exact;
        }
        const double lse = m->top + log(sum);
        good = good && fabs(t.lse[n] - lse) <= 1e-5 + fabs(lse) * 0x1p-16;
    }
    return good;
}

static double same_weight(int query, int key)
{
    (void)query, (void)key;
    return 1;
}

static void expect_mean(const char *what, const attn_desc *d, const struct mean *m)
{
    EXPECT(computes(d) && is_mean(d, m), "%d, %d: %s: \"%s\"", now.d, now.dv, what,
           attn_last_message(NULL));
}

bool hopper_is_mean(void)
{
    const attn_desc d = hopper_desc(1);
    return is_mean(&d, &(struct mean){same_weight, .value = 1});
}

/* Scores that are all the same, and so large that their exponents cannot be rounded. */
static void test_far(void)
{
    const double number = 127 * 256; /* of either type, and no power of two, which is exact */
    attn_desc d = hopper_desc(1);
    clear(SK, 1);
    for (int n = 0; n < SQ * now.d; n++)
        set(t.q, n, number);
    for (int n = 0; n < SK * now.d; n++)
        set(t.k, n, number);
    for (int n = 0; n < 2; n++) {
        d.scale = n ? 0.3 : 1;
        expect_mean("scores far from 0", &d,
                    &(struct mean){same_weight, d.scale * number * number * now.d, .value = 1});
    }
}

static uint8_t keep[SQ * SK];
static double kept_weight(int query, int key) { return keep[query * SK + key] ? 2 : 0; }

static void test_dropout(void)
{
    const attn_score_output mask = {.data = keep, .dtype = ATTN_BOOL};
    attn_desc d = hopper_desc(1);
    clear(SK, 1);
    d.dropout = 0.5;
    d.dropout_seed = 7;
    EXPECT(attn_dropout_mask(NULL, &d, &mask) == ATTN_OK, "what is kept: \"%s\"",
           attn_last_message(NULL));
    expect_mean("dropout", &d, &(struct mean){kept_weight, .sum = SK, .value = 1});
}

/* Keys and values, a part of a tile, that are the last before memory that nobody may read. */
static void test_end(void)
{
    enum { KEYS = 100, BYTES = 1 << 16 };
    attn_desc d = hopper_desc(1);
    char *const end = (char *)mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + BYTES;
    const attn_input own[] = {d.k, d.v};
    mprotect(end, BYTES, PROT_NONE);
    emulated_own(end - BYTES, BYTES, 0, 0);
    clear(KEYS, 1);
    d.key.seqlen = KEYS;
    for (int n = 0; n < 2; n++) {
        attn_input *const x = n ? &d.v : &d.k;
        d.k = own[0];
        d.v = own[1];
        const int64_t bytes = KEYS * x->token_stride * (int)sizeof(uint16_t);
        x->data = memcpy(end - bytes, x->data, (size_t)bytes);
        expect_mean("the end of memory", &d, &(struct mean){same_weight, .value = 1});
    }
    emulated_own(end - BYTES, 0, -1, 0);
    munmap(end - BYTES, 2 * BYTES);
}

/* Keys from some place on, as far from a query. */
static struct {
    int before, offset;
} band;
static double band_weight(int query, int key)
{
    return key <= query + band.offset && key >= query + band.offset - band.before;
}

/* The first tile's end is seen by the last rows of a warpgroup; then both ends of what is seen are
 * in tiles that some rows see whole, more than one of them at the end. */
static void test_bands(void)
{
    static const int keys[] = {SQ + 70, 540};
    for (int n = 0; n < 2; n++) {
        attn_desc d = hopper_desc(1);
        clear(LONG, 1);
        d.key.seqlen = keys[n];
        d.causal = 1;
        d.align = ATTN_BOTTOM_RIGHT;
        d.window = 1;
        d.window_left = band.before = n ? 300 : LONG;
        d.window_right = 0;
        band.offset = keys[n] - SQ;
        expect_mean("a band of keys", &d, &(struct mean){band_weight, .value = 1});
    }
}

static double doc_weight(int query, int key) { return query % 3 == key / 100; }
static double biased_weight(int query, int key)
{
    (void)query;
    return key % 5 == 0 ? 0 : key % 2 + 1;
}

/* Rules that no band tells, with scores that are products and others. */
static void test_rules(void)
{
    attn_desc d = hopper_desc(1);
    clear(SK, 1);
    for (int i = 0; i < SQ; i++)
        t.query_docs[i] = i % 3;
    for (int j = 0; j < SK; j++) {
        t.key_docs[j] = j / 100;
        t.bias[j] = (float)log(biased_weight(0, j));
    }
    d.query_docs.data = t.query_docs;
    d.key_docs.data = t.key_docs;
    expect_mean("documents", &d, &(struct mean){doc_weight, .value = 1});
    d.query_docs.data = d.key_docs.data = NULL;
    d.bias = (attn_score_input){.data = t.bias, .dtype = ATTN_F32, .key_stride = 1};
    expect_mean("a bias", &d, &(struct mean){biased_weight, .value = 1});
}

/* Scores that grow from tile to tile, but for the one at the end, which comes first. */
enum { LEVEL = 64 };
static int levels;
static double level_of(int key) { return key / LEVEL < levels ? (1 + key / LEVEL) * 0.25 : 0; }
static double rising_weight(int query, int key)
{
    (void)query;
    return exp(level_of(key) - levels * 0.25);
}

/* Of products, over so many tiles that none is there before its stage is free, which each launch
 * tries in another order; of scores that are none; and of few rows, whose keys are split. */
static void test_rising(double value, int launches)
{
    static const int rows[] = {SQ, SQ, 20}, keys[] = {600, SK, LONG};
    for (int n = 0; n < 3; n++) {
        attn_desc d = hopper_desc(1);
        levels = keys[n] / 128 * 128 / LEVEL;
        clear(LONG, value);
        d.query.seqlen = rows[n];
        d.key.seqlen = keys[n];
        d.scale = n == 1 ? -1 : 1;
        for (int i = 0; i < SQ; i++)
            set(t.q, i * now.d, d.scale);
        for (int j = 0; j < LONG; j++)
            set(t.k, j * now.d, level_of(j));
        for (int m = 0; m < (n == 0 ? launches : 1); m++) {
            hopper_clear_out();
            expect_mean("rising scores", &d,
                        &(struct mean){rising_weight, levels * 0.25, .value = value});
        }
    }
}

/* The mean of so many keys that their splits are more than a warp has lanes; by the short form. */
static void test_decode(void)
{
    enum { KEYS = 36 * 256, D = 64 };
    static uint16_t keys[KEYS * D], values[KEYS * D];
    attn_desc d = hopper_desc(GROUP);
    clear(SK, 1);
    for (int j = 0; j < KEYS; j++)
        set(values, j * D + column_of(j), 1);
    d.heads_kv = 1;
    d.query.seqlen = 1;
    d.key.seqlen = KEYS;
    d.k = (attn_input){.data = keys, .dtype = now.type};
    d.v = (attn_input){.data = values, .dtype = now.type};
    emulated_own(keys, sizeof keys, 0, 0);
    emulated_own(values, sizeof values, 0, 0);
    expect_mean("many splits", &d, &(struct mean){same_weight, .value = 1});
    emulated_own(keys, 0, -1, 0);
    emulated_own(values, 0, -1, 0);
}

/* ---- One key alone --------------------------------------------------------------------------- */

enum { LOUD = 16 }; /* in queries and in their keys: e^-256 is 0 beside 1 */

/* Heads that share keys. Of 256 keys threads put no tile; of few a cache holds the first two heads,
 * and then the last one. */
static void test_groups(void)
{
    const int few = 12800 / (now.d + now.dv), keys[GROUP] = {SK, few, 256, 256};
    for (int group = 1; group <= GROUP; group++) {
        const int nk = keys[group - 1], columns = nk - H < now.d ? nk - H : now.d;
        attn_desc d = hopper_desc(H * group);
        bool good = true;
        clear(SK, 1);
        d.heads_kv = H;
        d.key.seqlen = nk;
        for (int n = 0; n < SQ * H * group; n++)
            set(t.q, n * now.d + n * 7 % columns, LOUD);
        for (int h = 0; h < H; h++) /* of each head those from its own number on */
            for (int c = 0; c < columns; c++)
                set(t.k, (h * SK + h + c) * now.d + c, LOUD);
        EXPECT(computes(&d), "groups of %d: \"%s\"", group, attn_last_message(NULL));
        for (int n = 0; n < SQ * H * group; n++)
            for (int c = 0; c < now.dv; c++) {
                const int key = n * 7 % columns + n % (H * group) / group;
                good = good && get(n * now.dv + c) == (c == column_of(key));
            }
        EXPECT(good, "%d, %d: groups of %d", now.d, now.dv, group);
    }
}

/* Another one in each head where keys, or values, do not repeat. */
static void test_repeated(void)
{
    enum { TWO = 2 };
    for (int keys = 0; keys < 2; keys++) {
        attn_desc d = hopper_desc(TWO);
        bool good = true;
        clear(SK, 1);
        *(keys ? &d.k.head_stride : &d.v.head_stride) = 0;
        for (int n = 0; n < SQ * TWO; n++)
            set(t.q, n * now.d, LOUD);
        for (int h = 0; h < TWO; h++)
            set(t.k, (h * SK + 17 + 5 * h) * now.d, LOUD);
        EXPECT(computes(&d), "repeated heads: \"%s\"", attn_last_message(NULL));
        for (int n = 0; n < SQ * TWO * now.dv; n++) {
            const int key = 17 + (keys ? 0 : 5 * (n / now.dv % TWO));
            good = good && get(n) == (n % now.dv == column_of(key));
        }
        EXPECT(good, "%d, %d: repeated heads of %s", now.d, now.dv, keys ? "keys" : "values");
    }
}

/* Row n finds the key of column n * 7: of each sequence from its own number on. What lies between
 * rows may be anything. */
static void find_in(const char *what, attn_desc *d, const int *first_q, const int *first_k,
                    const int *keys)
{
    const int columns = now.d - 3;
    bool good = true;
    d->head_dim = columns;
    d->head_dim_v = now.dv - 3;
    for (int n = 0; n < SQ * now.d; n++)
        set(t.q, n, n % now.d < columns ? 0 : NAN);
    for (int n = 0; n < LONG * now.d; n++)
        set(t.k, n, n % now.d < columns ? 0 : NAN);
    for (int b = 0; b < d->batch; b++) {
        for (int n = first_q[b]; n < first_q[b + 1]; n++)
            set(t.q, n * now.d + n * 7 % columns % (keys[b] - B), LOUD);
        for (int c = 0; c < columns && c < keys[b] - B; c++)
            set(t.k, (first_k[b] + b + c) * now.d + c, LOUD);
    }
    EXPECT(computes(d), "%s: \"%s\"", what, attn_last_message(NULL));
    for (int b = 0; b < d->batch; b++)
        for (int n = first_q[b]; n < first_q[b + 1]; n++)
            for (int c = 0; c < now.dv - 3; c++) {
                const int key = first_k[b] + b + n * 7 % columns % (keys[b] - B);
                good = good && get(n * now.dv + c) == (c == column_of(key));
            }
    EXPECT(good, "%d, %d: %s", now.d, now.dv, what);
}

static void test_batches(void)
{
    static const int rows[] = {0, 30, 52, 70}, padded_rows[] = {0, 23, 46, 69};
    static const int starts[] = {0, 300, 558, 900}, padded_starts[] = {0, 300, 600};
    static const int keys[] = {300, 258, 342}, padded_keys[] = {300, 300, 300};
    attn_desc d = hopper_desc(1);
    clear(LONG, 1);
    d.batch = B;
    d.query.seqlen = 23;
    d.q.batch_stride = 23 * now.d;
    d.out.batch_stride = 23 * now.dv;
    d.lse.batch_stride = 23;
    d.k.batch_stride = SK * now.d;
    d.v.batch_stride = SK * now.dv;
    find_in("a padded batch", &d, padded_rows, padded_starts, padded_keys);

    d = hopper_desc(1);
    clear(LONG, 1);
    for (int b = 0; b <= B; b++) {
        t.cu_q[b] = rows[b];
        t.cu_k[b] = starts[b];
    }
    d.batch = B;
    d.query = (attn_side){.layout = ATTN_PACKED, .tokens = rows[B], .cu_seqlens.data = t.cu_q,
                          .max_seqlen = 30};
    d.key = (attn_side){.layout = ATTN_PACKED, .tokens = starts[B], .cu_seqlens.data = t.cu_k,
                        .max_seqlen = 342};
    find_in("a packed batch", &d, rows, starts, keys);
}

/* The last pages, in falling order; entries past the last one used may be anything. */
static void test_pages(void)
{
    enum { PAGE = 16, PAGES = 20, USED = 15, BEYOND = 0x3fffffff };
    attn_desc d = hopper_desc(1);
    bool good = true;
    clear(LONG, 1);
    for (int n = 0; n < PAGES; n++)
        t.table[n] = n < USED ? PAGES - 1 - n : BEYOND;
    t.used = PAGE * USED;
    d.key = (attn_side){.layout = ATTN_PAGED, .pages = PAGES, .page_size = PAGE,
                        .block_table.data = t.table, .max_pages = PAGES,
                        .seqused.data = &t.used, .max_seqlen = PAGES * PAGE};
    d.k = (attn_input){.data = t.k, .dtype = now.type};
    d.v = (attn_input){.data = t.v, .dtype = now.type};
    for (int n = 0; n < SQ; n++) { /* each finds a row from the end on */
        const int c = n * 3 % now.d % t.used;
        set(t.q, n * now.d + c, LOUD);
        set(t.k, (PAGES * PAGE - 1 - c) * now.d + c, LOUD);
    }
    EXPECT(computes(&d), "pages: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < SQ * now.dv; n++) {
        const int c = n / now.dv * 3 % now.d % t.used;
        good = good && get(n) == (n % now.dv == column_of(PAGES * PAGE - 1 - c));
    }
    EXPECT(good, "%d, %d: pages", now.d, now.dv);
}

/* ---- Values that are not finite --------------------------------------------------------------- */

/* What a value is that is not finite shows where it is seen, and there alone: in the first columns,
 * by some rows, but not in the next one, whose key is hidden from all. */
static void test_hidden(void)
{
    enum { AT = 48, COLUMNS = 16, HIDDEN = 20 };
    for (int masked = 0; masked < 2; masked++) {
        const int heads = masked ? 1 : 2 * H; /* the next one's copies go over what is left */
        attn_desc d = hopper_desc(heads);
        bool good = true;
        clear(SK, 1);
        memset(t.key_mask, 1, sizeof t.key_mask);
        for (int h = 0; h < H; h++)
            for (int c = 0; c < COLUMNS; c++)
                set(t.v, (h * SK + AT + c) * now.dv + c, NAN);
        if (masked) {
            for (int h = 0; h < H; h++)
                set(t.v, (h * SK + HIDDEN) * now.dv + COLUMNS, NAN);
            t.key_mask[HIDDEN] = 0;
            d.key_mask.data = t.key_mask;
        }
        d.heads_kv = masked ? 1 : H;
        d.causal = 1;
        d.align = ATTN_TOP_LEFT;
        EXPECT(computes(&d), "values that are NaN: \"%s\"", attn_last_message(NULL));
        for (int n = 0; n < SQ * heads * now.dv; n++) {
            const int query = n / now.dv / heads, c = n % now.dv;
            good = good && isnan(get(n)) == (c < COLUMNS && query >= AT + c);
        }
        EXPECT(good, "%d, %d: NaN where it is not seen, or none where it is", now.d, now.dv);
    }
}

void hopper_shapes(int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        now = shapes[n];
        test_far();
        test_dropout();
        test_end();
        test_bands();
        test_rules();
        test_rising(1, 4);
        test_groups();
        test_repeated();
        test_batches();
        test_pages();
        test_hidden();
        now.type = ATTN_BF16;
        test_rising(0x1.fep127, 1);
    }
    now = shapes[0];
    test_decode();
}
