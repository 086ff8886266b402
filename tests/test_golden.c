/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Worked examples in files: attention on a small padded batch, as printed elsewhere (4 decimals)
 * and in exact double precision, and the unpadding of masks.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "memory.h"
#include "problem_image.h"
#include "report.h"
#include "run.h"

enum { MOST_ARRAYS = 64, PATH = 600, LINE = 400, B = 2, S = 4, H = 2, D = 3, TOKENS = B * S };

/* "name extent...", then the numbers; a name with one number is that number. */
struct array {
    char name[64];
    int64_t extent[4], count;
    double *x;
};

struct file {
    struct array arrays[MOST_ARRAYS];
    int count;
};

static bool is_scalar(const char *name)
{
    return strcmp(name, "max_seqlen") == 0 || strcmp(name, "case") == 0;
}

static void read_array(FILE *f, const char *line, struct array *a)
{
    int used = 0, n = 0;

    if (sscanf(line, "%63s%n", a->name, &used) != 1)
        return;
    a->count = 1;
    for (char *at, *from = (char *)(uintptr_t)(line + used); n < 4; n++, from = at) {
        a->extent[n] = strtoll(from, &at, 10);
        if (at == from)
            break;
        a->count *= a->extent[n];
    }
    if (is_scalar(a->name)) {
        a->count = 0;
        return;
    }
    a->x = test_alloc((size_t)a->count * sizeof *a->x);
    for (int64_t i = 0; i < a->count; i++)
        if (fscanf(f, "%lf", &a->x[i]) != 1)
            report_fail("golden: %s: number %lld is missing", a->name, (long long)i);
}

static bool file_read(struct file *g, const char *name)
{
    char path[PATH], line[LINE];

    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, "%s/%s", ATTN_TEST_GOLDEN, name);
    FILE *f = fopen(path, "r");
    if (!f) {
        report_fail("golden: cannot read %s", path);
        return false;
    }
    while (g->count < MOST_ARRAYS && fgets(line, sizeof line, f))
        if (isalpha((unsigned char)line[0]))
            read_array(f, line, &g->arrays[g->count++]);
    fclose(f);
    return true;
}

static void file_free(struct file *g)
{
    for (int n = 0; n < g->count; n++)
        free(g->arrays[n].x);
}

/* The array of this name from number `from` on; the program ends without it. */
static const struct array *find(const struct file *g, const char *name, int from)
{
    for (int n = from; n < g->count; n++)
        if (strcmp(g->arrays[n].name, name) == 0)
            return &g->arrays[n];
    fprintf(stderr, "golden: no array %s\n", name);
    exit(1);
}

/* The inputs in one element type. */
struct inputs {
    attn_dtype dtype;
    double q[TOKENS * H * D], k[TOKENS * H * D], v[TOKENS * H * D]; /* room for either type */
    uint8_t mask[TOKENS];
};

static void inputs_read(struct inputs *in, const struct file *g, attn_dtype dtype)
{
    const char *const names[] = {"q", "k", "v"};
    double *const tensors[] = {in->q, in->k, in->v};

    in->dtype = dtype;
    for (int n = 0; n < 3; n++)
        for (int64_t i = 0; i < TOKENS * H * D; i++)
            element_set(dtype, tensors[n], i, (double)(float)find(g, names[n], 0)->x[i]);
    for (int64_t i = 0; i < TOKENS; i++)
        in->mask[i] = (uint8_t)find(g, "mask", 0)->x[i];
}

static attn_desc describe(const struct inputs *in, bool causal, const uint8_t *mask, double *out,
                          double *lse)
{
    attn_desc d = attn_desc_init();

    d.batch = B;
    d.heads_q = H;
    d.head_dim = D;
    d.query.seqlen = d.key.seqlen = S;
    d.q = (attn_input){.data = in->q, .dtype = in->dtype};
    d.k = (attn_input){.data = in->k, .dtype = in->dtype};
    d.v = (attn_input){.data = in->v, .dtype = in->dtype};
    d.out = (attn_output){.data = out, .dtype = in->dtype};
    d.lse = (attn_output){.data = lse, .dtype = in->dtype};
    d.causal = causal;
    d.align = causal ? ATTN_TOP_LEFT : ATTN_ALIGN_NONE;
    d.key_mask.data = mask;
    return d;
}

static void expect(const struct target *t, attn_dtype dtype, const char *name, const double *want,
                   const double *got, int64_t count, double tolerance)
{
    for (int64_t i = 0; i < count; i++) {
        const double x = element_get(dtype, got, i);
        if (x == want[i] || fabs(x - want[i]) <= tolerance)
            continue;
        report_fail("golden --backend %s%s%s: %s, %s: [%lld] is %.17g, expected %.17g, allowed %g",
                    t->name, t->isa ? " --isa " : "", t->isa ? t->isa : "", name,
                    dtype == ATTN_F64 ? "f64" : "f32", (long long)i, x, want[i], tolerance);
        return;
    }
    report_pass();
}

static bool answered(const struct target *t, attn_status status)
{
    if (status == ATTN_OK)
        return true;
    if (status == ATTN_NO_BACKEND)
        report_skip("%s: not built in", t->name);
    else
        report_fail("golden: %s: %s, %s", t->name, attn_status_name(status),
                    attn_last_message(t->context));
    return false;
}

/* One form of the call: through the descriptor, and the short one. */
static void check_form(const struct target *t, const struct file *g, const struct inputs *in,
                       bool causal, bool masked)
{
    const double exact = in->dtype == ATTN_F64 ? 1e-14 : 1e-6;
    const uint8_t *mask = masked ? in->mask : NULL;
    double out[TOKENS * H * D], lse[TOKENS * H];
    char name[80];

    snprintf(name, sizeof name, "out_%s%s_f64", causal ? "causal" : "bidirectional",
             masked ? "" : "_nomask");
    const struct array *want = find(g, name, 0);
    const attn_desc d = describe(in, causal, mask, out, lse);
    if (!answered(t, attn_forward(t->context, &d)))
        return;
    expect(t, in->dtype, name, want->x, out, want->count, exact);
    if (masked) {
        const struct array *l = find(g, causal ? "lse_causal_f64" : "lse_bidirectional_f64", 0);
        expect(t, in->dtype, l->name, l->x, lse, l->count, exact);
    }
    if (masked && !causal) {
        const struct array *printed = find(g, "out_bidirectional_printed", 0);
        expect(t, in->dtype, printed->name, printed->x, out, printed->count, 5.1e-5);
    }
    memset(out, 0xff, sizeof out);
    if (answered(t, (causal ? attn_causal : attn_bidirectional)(t->context, in->dtype, B, S, H, D,
                                                                in->q, in->k, in->v, mask, out)))
        expect(t, in->dtype, causal ? "attn_causal" : "attn_bidirectional", want->x, out,
               want->count, exact);
}

/* The LSE of a row that sees one key alone is its score: with a scale of 1 the printed one, and
 * -inf where the mask hides that key. */
static void check_scores(const struct target *t, const struct file *g, const struct inputs *in)
{
    const struct array *scores = find(g, "unscaled_scores_printed", 0);
    double out[TOKENS * H * D], lse[TOKENS * H], want[TOKENS * H];

    for (int64_t j = 0; j < S; j++) {
        uint8_t mask[TOKENS] = {0};
        for (int64_t b = 0; b < B; b++)
            mask[b * S + j] = in->mask[b * S + j];
        for (int64_t row = 0; row < TOKENS * H; row++)
            want[row] = scores->x[row * S + j];
        attn_desc d = describe(in, false, mask, out, lse);
        d.scale = 1;
        if (answered(t, attn_forward(t->context, &d)))
            expect(t, in->dtype, scores->name, want, lse, TOKENS * H, 5.1e-5);
    }
}

static void check_attention(const struct options *o)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64};
    struct target targets[MOST_TARGETS];
    struct file g;
    struct inputs in;

    if (!file_read(&g, "padded_b2_s4_h2_d3.txt"))
        return;
    const int count = targets_open(targets, o);
    for (int t = 0; t < count; t++)
        for (int type = 0; type < 2; type++) {
            inputs_read(&in, &g, types[type]);
            for (int form = 0; form < 4; form++)
                check_form(&targets[t], &g, &in, form & 1, form & 2);
            check_scores(&targets[t], &g, &in);
        }
    targets_close(targets, count);
    file_free(&g);
}

static void expect_numbers(const struct array *want, const int32_t *x, const int64_t *y)
{
    for (int64_t i = 0; i < want->count; i++)
        if ((x ? (double)x[i] : (double)y[i]) != want->x[i]) {
            report_fail("golden: unpad: %s[%lld] is %lld, expected %g", want->name, (long long)i,
                        x ? (long long)x[i] : (long long)y[i], want->x[i]);
            return;
        }
    report_pass();
}

/* unpad, then pad: the kept rows come back, the others are 0. */
static void check_round_trip(int64_t batch, int64_t seqlen, const uint8_t *mask)
{
    enum { WIDTH = 3 };
    const int64_t rows = batch * seqlen, count = rows * WIDTH;
    float *x = test_alloc((size_t)count * sizeof *x), *y = test_alloc((size_t)count * sizeof *y);
    float *rest = test_alloc((size_t)count * sizeof *rest);
    int64_t *indices = test_alloc((size_t)rows * sizeof *indices);
    attn_packing p = {.indices = indices};
    bool good = true;

    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(i + 1);
    good = attn_unpad(NULL, ATTN_F32, batch, seqlen, WIDTH, x, mask, rest, &p) == ATTN_OK &&
           attn_pad(NULL, ATTN_F32, rows, WIDTH, rest, indices, p.total, y) == ATTN_OK;
    for (int64_t i = 0; i < count; i++)
        good = good && y[i] == (mask[i / WIDTH] ? x[i] : 0);
    if (good)
        report_pass();
    else
        report_fail("golden: unpad and pad: not the inverse of each other");
    free(x);
    free(y);
    free(rest);
    free(indices);
}

static void check_case(const struct file *g, int at)
{
    const struct array *shape = find(g, "mask", at), *longest = find(g, "max_seqlen", at);
    const int64_t batch = shape->extent[0], seqlen = shape->extent[1];
    uint8_t *mask = test_alloc((size_t)shape->count);
    int64_t *indices = test_alloc((size_t)shape->count * sizeof *indices);
    int64_t *positions = test_alloc((size_t)shape->count * sizeof *positions);
    int32_t *cu = test_alloc((size_t)(batch + 1) * sizeof *cu);
    attn_packing p = {.indices = indices, .cu_seqlens = cu};

    for (int64_t i = 0; i < shape->count; i++)
        mask[i] = shape->x[i] != 0;
    if (attn_packing_from_mask(NULL, batch, seqlen, mask, &p) != ATTN_OK ||
        attn_position_ids(NULL, batch, cu, NULL, positions) != ATTN_OK) {
        report_fail("golden: unpad: %s", attn_last_message(NULL));
    } else {
        expect_numbers(find(g, "indices", at), NULL, indices);
        expect_numbers(find(g, "cu_seqlens", at), cu, NULL);
        expect_numbers(find(g, "positions", at), NULL, positions);
        if (p.total == find(g, "indices", at)->count && p.max_seqlen == longest->extent[0])
            report_pass();
        else
            report_fail("golden: unpad: total %lld, longest %lld", (long long)p.total,
                        (long long)p.max_seqlen);
        check_round_trip(batch, seqlen, mask);
    }
    free(mask);
    free(indices);
    free(positions);
    free(cu);
}

static void check_unpad(void)
{
    struct file g;

    if (!file_read(&g, "unpad.txt"))
        return;
    for (int n = 0; n < g.count; n++)
        if (strcmp(g.arrays[n].name, "case") == 0)
            check_case(&g, n);
    file_free(&g);
}

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "golden", 1);

    report_begin(o.program);
    check_attention(&o);
    check_unpad();
    return report_end();
}
