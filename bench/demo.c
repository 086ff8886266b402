/* SPDX-License-Identifier: BSD-3-Clause */
/* What the library is for, on a real text: attention over sentences of all lengths, once padded to
 * the longest and once packed end to end, by the eager backend and by the tiled one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "blas_setup.h"
#include "demo_model.h"
#include "timing.h"

enum { PADDED, PACKED, FORMS, WAYS = 4, MASKS = 2 /* bidirectional, causal */ };

struct tensors {
    float *q, *k, *v, *out; /* [rows, DEMO_WIDTH] */
};

struct batch {
    struct demo_text text;
    const char *unit; /* "sentence" */
    int64_t rows[FORMS];
    struct tensors x[FORMS];
    uint8_t *mask;    /* [sequences, longest], 1 = a token */
    int64_t *indices; /* where each packed row stands in the padded batch */
    float *first[MASKS], *gathered; /* [tokens, DEMO_WIDTH]: results to compare with; scratch */
};

struct way {
    attn_backend backend;
    int form;
    const char *name;
    bool served;
    double ms[MASKS];
    size_t workspace;
    char kernel[64];
};

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "attn-demo: %s: %s\n", what, why);
    return 1;
}

/* Null when there is no memory, also for sizes of 0. */
static void *room(int64_t count, size_t size)
{
    return calloc(count > 0 ? (size_t)count : 1, size);
}

static bool make_tensors(struct tensors *x, int64_t rows)
{
    const int64_t n = rows * DEMO_WIDTH;
    x->q = room(n, sizeof(float));
    x->k = room(n, sizeof(float));
    x->v = room(n, sizeof(float));
    x->out = room(n, sizeof(float));
    return x->q && x->k && x->v && x->out;
}

static bool make_room(struct batch *b)
{
    const struct demo_text *t = &b->text;
    b->rows[PACKED] = t->tokens;
    b->rows[PADDED] = (int64_t)t->sequences * t->longest;
    b->mask = room(b->rows[PADDED], 1);
    b->indices = room(b->rows[PADDED], sizeof *b->indices);
    b->gathered = room(b->rows[PACKED] * DEMO_WIDTH, sizeof(float));
    bool ok = b->mask && b->indices && b->gathered;
    for (int m = 0; m < MASKS; m++)
        ok = (b->first[m] = room(b->rows[PACKED] * DEMO_WIDTH, sizeof(float))) != NULL && ok;
    return make_tensors(&b->x[PADDED], b->rows[PADDED]) &&
           make_tensors(&b->x[PACKED], b->rows[PACKED]) && ok;
}

/* q, k and v packed, then the same tokens spread out to the padded batch. */
static attn_status make_batch(struct batch *b)
{
    const struct demo_text *t = &b->text;
    if (!make_room(b) || !demo_model_qkv(t, b->x[PACKED].q, b->x[PACKED].k, b->x[PACKED].v))
        return ATTN_NO_MEMORY;
    for (int32_t n = 0; n < t->sequences; n++)
        memset(b->mask + (int64_t)n * t->longest, 1,
               (size_t)(t->cu_seqlens[n + 1] - t->cu_seqlens[n]));
    attn_packing packing = {b->indices, NULL, NULL, 0, 0};
    attn_status status = attn_packing_from_mask(NULL, t->sequences, t->longest, b->mask, &packing);

    float *const from[] = {b->x[PACKED].q, b->x[PACKED].k, b->x[PACKED].v};
    float *const to[] = {b->x[PADDED].q, b->x[PADDED].k, b->x[PADDED].v};
    for (int n = 0; n < 3 && status == ATTN_OK; n++)
        status = attn_pad(NULL, ATTN_F32, b->rows[PADDED], DEMO_WIDTH, from[n], b->indices,
                          packing.total, to[n]);
    return status;
}

static attn_desc describe(const struct batch *b, int form, int causal)
{
    const struct tensors *x = &b->x[form];
    attn_desc d = attn_desc_init();
    d.batch = b->text.sequences;
    d.heads_q = DEMO_HEADS;
    d.head_dim = DEMO_HEAD_DIM;
    if (form == PACKED) {
        d.query.layout = ATTN_PACKED;
        d.query.tokens = b->rows[PACKED];
        d.query.cu_seqlens.data = b->text.cu_seqlens;
    } else {
        d.query.seqlen = b->text.longest;
        d.key_mask.data = b->mask;
    }
    d.key = d.query;
    d.q.data = x->q;
    d.k.data = x->k;
    d.v.data = x->v;
    d.out.data = x->out;
    d.causal = causal;
    d.align = causal ? ATTN_TOP_LEFT : ATTN_ALIGN_NONE;
    return d;
}

/* Median milliseconds of a call, over a second or so. */
static attn_status time_call(attn_context *context, const attn_desc *d, double *ms)
{
    enum { MOST = 25, LEAST = 3 };
    double times[MOST];
    int n = 0;
    attn_status status = attn_forward(context, d); /* warm up */
    for (const double begin = bench_now(); status == ATTN_OK && n < MOST; n++) {
        if (n >= LEAST && bench_now() - begin > 0.5)
            break;
        const double start = bench_now();
        status = attn_forward(context, d);
        times[n] = 1e3 * (bench_now() - start);
    }
    *ms = n > 0 ? bench_quantile(times, n, 0.5) : 0;
    return status;
}

/* The largest difference between this way's result and the first way's, which is kept. */
static double compare(struct batch *b, int form, int mask, bool first)
{
    const size_t n = (size_t)b->rows[PACKED] * DEMO_WIDTH;
    const float *out = b->x[form].out;
    double worst = 0;
    if (form == PADDED) {
        attn_gather(NULL, ATTN_F32, b->rows[PADDED], DEMO_WIDTH, out, b->indices, b->rows[PACKED],
                    b->gathered);
        out = b->gathered;
    }
    if (first)
        memcpy(b->first[mask], out, n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        const double difference = fabs((double)out[i] - (double)b->first[mask][i]);
        if (!(difference <= worst)) /* so that NaN counts */
            worst = isnan(difference) ? INFINITY : difference;
    }
    return worst;
}

/* What the backend says of the call; false and the reason in w->kernel where it does not serve. */
static bool ask(attn_context *context, const attn_desc *d, struct way *w)
{
    attn_explanation e = attn_explanation_init();
    if (attn_explain(context, d, ATTN_PASS_FORWARD, &e) != ATTN_OK)
        return false;
    for (int32_t n = 0; n < e.count; n++)
        if (e.candidates[n].backend == w->backend) {
            const bool ok = e.candidates[n].status == ATTN_OK;
            snprintf(w->kernel, sizeof w->kernel, "%.60s",
                     ok ? e.candidates[n].kernel : e.candidates[n].reason);
            w->workspace = e.candidates[n].workspace;
            return ok;
        }
    return false;
}

static int run_way(struct batch *b, struct way *w, bool first, double *worst)
{
    attn_options options = attn_options_init();
    attn_context *context = NULL;
    attn_status status = attn_context_create(&context, &options);
    if (status != ATTN_OK)
        return fail(w->name, attn_last_message(NULL));
    const attn_desc probe = describe(b, w->form, 0);
    w->served = ask(context, &probe, w);
    attn_context_destroy(context);
    if (!w->served)
        return 0;

    options.backend = w->backend;
    status = attn_context_create(&context, &options);
    for (int m = 0; m < MASKS && status == ATTN_OK; m++) {
        const attn_desc d = describe(b, w->form, m);
        status = time_call(context, &d, &w->ms[m]);
        if (status == ATTN_OK)
            worst[m] = fmax(worst[m], compare(b, w->form, m, first));
    }
    if (status != ATTN_OK)
        fail(w->name, attn_last_message(context));
    attn_context_destroy(context);
    return status != ATTN_OK;
}

static double mib(int64_t bytes) { return (double)bytes / (1 << 20); }

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

static void print_text(const struct batch *b, const char *path)
{
    const struct demo_text *t = &b->text;
    const char *name = strrchr(path, '/');
    printf("libattn %s: attention over %ss of different lengths\n\n", attn_version(), b->unit);
    printf("text    %s: %d %s%s, %d token%s; the shortest has %d, the longest %d\n",
           name ? name + 1 : path, (int)t->sequences, b->unit, plural(t->sequences), (int)t->tokens,
           plural(t->tokens), (int)t->shortest, (int)t->longest);
    if (t->cut)
        printf("        (only the first %d MiB of the file)\n", DEMO_BYTES >> 20);
    if (t->split)
        printf("        (%d longer than %d tokens split)\n", (int)t->split, DEMO_LONGEST);
    if (t->left_out)
        printf("        (%d more left out, to keep the padded batch within %d rows)\n",
               (int)t->left_out, DEMO_PADDED_ROWS);
    printf("model   %d heads of %d, f32; hashed letter trigrams, fixed random projections\n\n",
           DEMO_HEADS, DEMO_HEAD_DIM);
}

static void print_histogram(const struct batch *b)
{
    enum { BARS = 8, WIDTH = 48 };
    const struct demo_text *t = &b->text;
    const int32_t step = (t->longest + BARS - 1) / BARS;
    int32_t count[BARS] = {0}, most = 1;
    for (int32_t n = 0; n < t->sequences; n++) {
        int32_t *c = &count[(t->cu_seqlens[n + 1] - t->cu_seqlens[n] - 1) / step];
        if (++*c > most)
            most = *c;
    }
    printf("   tokens  %ss\n", b->unit);
    for (int32_t n = 0; n * step < t->longest; n++) {
        const int32_t bar = (count[n] * WIDTH + most - 1) / most;
        printf("%4d-%4d  %.*s%s%d\n", (int)(n * step + 1), (int)((n + 1) * step), (int)bar,
               "################################################", bar ? " " : "", (int)count[n]);
    }
}

static void print_waste(const struct batch *b)
{
    const struct demo_text *t = &b->text;
    double seen = 0, all = (double)b->rows[PADDED] * t->longest;
    for (int32_t n = 0; n < t->sequences; n++) {
        const double length = t->cu_seqlens[n + 1] - t->cu_seqlens[n];
        seen += length * length;
    }
    const int64_t row = 4 * DEMO_WIDTH * (int64_t)sizeof(float);
    printf("\npadded  %d x %d = %d rows, %.1f MiB in q, k, v and out\n", (int)t->sequences,
           (int)t->longest, (int)b->rows[PADDED], mib(b->rows[PADDED] * row));
    printf("packed  %d rows end to end, %.1f MiB\n", (int)t->tokens, mib(t->tokens * row));
    printf("waste   of the padded batch %.0f%% of the rows and %.0f%% of the query-key pairs are "
           "padding\n\n",
           100 * (1 - (double)t->tokens / (double)b->rows[PADDED]), 100 * (1 - seen / all));
}

static void print_ways(const struct way *ways)
{
    printf("backend  batch                 bidirectional       causal    workspace  kernel\n");
    for (int n = 0; n < WAYS; n++) {
        const struct way *w = &ways[n];
        if (w->served)
            printf("%-8s %-21s %10.2f ms %9.2f ms %8.1f MiB  %s%s%s\n",
                   attn_backend_name(w->backend), w->name, w->ms[0], w->ms[1],
                   mib((int64_t)w->workspace), w->kernel,
                   w->backend == ATTN_BACKEND_EAGER ? ", " : "",
                   w->backend == ATTN_BACKEND_EAGER ? bench_blas_kernel() : "");
        else
            printf("%-8s %-21s %s\n", attn_backend_name(w->backend), w->name, w->kernel);
    }
}

static void print_verdict(const struct way *ways, const double *worst)
{
    const struct way *slow = NULL, *fast = &ways[WAYS - 1];
    for (int n = WAYS - 2; n >= 0; n--)
        if (ways[n].served)
            slow = &ways[n];
    if (!slow || !fast->served)
        return;
    printf("\nThe last is %.1f (bidirectional) and %.1f (causal) times as fast as the first%s.\n",
           slow->ms[0] / fast->ms[0], slow->ms[1] / fast->ms[1],
           slow->backend == ATTN_BACKEND_EAGER ? "" : ", eager not being there");
    printf("Largest difference between any result and the first: %.1e and %.1e.\n", worst[0],
           worst[1]);
}

static void batch_free(struct batch *b)
{
    for (int form = 0; form < FORMS; form++) {
        free(b->x[form].q);
        free(b->x[form].k);
        free(b->x[form].v);
        free(b->x[form].out);
    }
    for (int m = 0; m < MASKS; m++)
        free(b->first[m]);
    free(b->gathered);
    free(b->indices);
    free(b->mask);
    demo_text_free(&b->text);
}

static int demo(struct batch *b, const char *path)
{
    static const double tolerance = 1e-4; /* values are of size 1 */
    struct way ways[WAYS] = {
        {.backend = ATTN_BACKEND_EAGER, .form = PADDED, .name = "padded, key mask"},
        {.backend = ATTN_BACKEND_CPU, .form = PADDED, .name = "padded, key mask"},
        {.backend = ATTN_BACKEND_EAGER, .form = PACKED, .name = "packed, cu_seqlens"},
        {.backend = ATTN_BACKEND_CPU, .form = PACKED, .name = "packed, cu_seqlens"},
    };
    double worst[MASKS] = {0, 0};
    bool first = true;
    attn_status status = make_batch(b);
    if (status != ATTN_OK)
        return fail(attn_status_name(status), attn_last_message(NULL));
    print_text(b, path);
    print_histogram(b);
    print_waste(b);
    fflush(stdout);
    for (int n = 0; n < WAYS; n++) {
        if (run_way(b, &ways[n], first, worst) != 0)
            return 1;
        first = first && !ways[n].served;
    }
    print_ways(ways);
    print_verdict(ways, worst);
    if (worst[0] <= tolerance && worst[1] <= tolerance)
        return 0;
    return fail("results", "they do not agree");
}

int main(int argc, char **argv)
{
    struct batch b;
    memset(&b, 0, sizeof b);
    b.unit = "sentence";
    int at = 1;
    if (at < argc && strcmp(argv[at], "--paragraphs") == 0) {
        b.unit = "paragraph";
        at++;
    }
    if (at + 1 != argc || strcmp(argv[at], "--help") == 0) {
        fprintf(stderr, "usage: attn-demo [--paragraphs] FILE\n");
        return 2;
    }
    bench_blas_setup(argv, 1);
    const char *wrong =
        demo_text_read(&b.text, argv[at], at > 1 ? DEMO_PARAGRAPHS : DEMO_SENTENCES);
    int status = 0;
    if (wrong)
        status = fail(argv[at], wrong);
    else if (b.text.tokens == 0)
        printf("%s: no words in it, so there is nothing to attend to\n", argv[at]);
    else
        status = demo(&b, argv[at]);
    batch_free(&b);
    return status;
}
