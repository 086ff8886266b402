/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * train_block [--steps N] [--losses FILE] TEXT: trains the model of block.h on the sentences of a
 * text, twice: on packed batches, and on padded ones with the lengths in seqused. Attention has the
 * same bits either way and everything else is done token by token, so the losses of all steps and
 * the weights at the end have to be the same bit for bit; the exit status tells if they are not, or
 * if the loss has not fallen. FILE gets the losses as CSV.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sentences.h"

enum { STEPS = 300, MOST_STEPS = 10000, LINES = 12 }; /* LINES: of the table, about */

/* ------------------------------------------------------------------------------------------------
 * Training
 * --------------------------------------------------------------------------------------------- */

/* Adam. The averages are kept as the weights are. */
struct training {
    struct block model, gradient, mean, square;
};

static void update(struct training *t, int step)
{
    const double rate = 3e-3, keep = 0.9, keep_square = 0.99;
    const real scale = (real)(rate / (1 - pow(keep, step)));
    const real square_scale = (real)(1 / (1 - pow(keep_square, step)));
    real *w = (real *)&t->model, *m = (real *)&t->mean, *v = (real *)&t->square;
    const real *g = (const real *)&t->gradient;
    for (int n = 0; n < PARAMETERS; n++) {
        m[n] += (real)(1 - keep) * (g[n] - m[n]);
        v[n] += (real)(1 - keep_square) * (g[n] * g[n] - v[n]);
        w[n] -= scale * m[n] / (sqrtf(v[n] * square_scale) + (real)1e-8);
    }
}

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One training, from the same weights and sentences each time. */
struct run {
    struct training training;
    double losses[MOST_STEPS];
    int64_t rows, tokens, most_rows;
    double seconds;
};

/* Where padding lies, room holds NaN or what an earlier batch left: nothing may depend on it. */
static bool train(const struct sentences *s, attn_layout layout, int steps, attn_context *context,
                  struct filled *f, real *room, struct run *run)
{
    struct training *t = &run->training;
    uint64_t seed = 2;
    const double start = seconds();
    memset(run, 0, sizeof *run);
    memset(room, 0xff, block_room(MOST_ROWS) * sizeof *room);
    block_draw(&t->model, 1);
    for (int step = 0; step < steps; step++) {
        sentences_draw(s, layout, &seed, f);
        if (block_loss(&t->model, context, &f->batch, room, &run->losses[step], &t->gradient) !=
            ATTN_OK)
            return false;
        update(t, step + 1);
        run->tokens += f->batch.tokens.count;
        run->rows += f->batch.rows;
        run->most_rows = f->batch.rows > run->most_rows ? f->batch.rows : run->most_rows;
    }
    run->seconds = seconds() - start;
    return true;
}

/* ------------------------------------------------------------------------------------------------
 * Telling
 * --------------------------------------------------------------------------------------------- */

static double mean(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

/* Losses averaged over the steps since the line before. */
static void tell_losses(const struct run *packed, const struct run *padded, int steps)
{
    const int each = steps > LINES ? (steps + LINES - 1) / LINES : 1;
    printf("\n    steps   packed, loss   padded, loss\n");
    for (int n = 0; n < steps; n += each) {
        const int count = n + each < steps ? each : steps - n;
        printf("%4d-%4d   %12.9f   %12.9f\n", n + 1, n + count, mean(packed->losses + n, count),
               mean(padded->losses + n, count));
    }
}

static void tell_run(const char *name, const struct run *r, int steps)
{
    const double padding = 100.0 * (double)(r->rows - r->tokens) / (double)r->rows;
    printf("%s %6.0f rows a step, %2.0f %% of them padding; %5.1f MiB of activations; %5.1f s\n",
           name, (double)r->rows / steps, padding,
           (double)(block_room(r->most_rows) * sizeof(real)) / 1048576, r->seconds);
}

/* Steps whose losses differ in any bit. */
static int differences(const struct run *a, const struct run *b, int steps)
{
    int count = 0;
    for (int n = 0; n < steps; n++)
        count += memcmp(&a->losses[n], &b->losses[n], sizeof a->losses[n]) != 0;
    return count;
}

/* The exit status. */
static int tell(const struct sentences *s, const struct run *packed, const struct run *padded,
                int steps)
{
    const int tenth = steps < 10 ? 1 : steps / 10;
    const double first = mean(packed->losses, tenth);
    const double last = mean(packed->losses + steps - tenth, tenth);
    const int differ = differences(packed, padded, steps);
    const bool same = memcmp(&packed->training.model, &padded->training.model,
                             sizeof packed->training.model) == 0;
    tell_losses(packed, padded, steps);
    printf("\nA guess by the frequency of each character has a loss of %.3f.\n\n",
           sentences_entropy(s));
    tell_run("packed:", packed, steps);
    tell_run("padded:", padded, steps);
    if (differ || !same) {
        printf("\n%d of %d losses differ; the weights at the end %s.\n", differ, steps,
               same ? "do not" : "do too");
        return 1;
    }
    printf("\nAll %d losses and the %d weights at the end are the same bit for bit.\n", steps,
           PARAMETERS);
    if (!(steps == 1 || last < 0.9 * first)) {
        printf("The loss has not fallen: %.3f, %.3f.\n", first, last);
        return 1;
    }
    return 0;
}

static bool write_losses(const char *path, const struct run *packed, const struct run *padded,
                         int steps)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fprintf(file, "step,packed,padded\n");
    for (int n = 0; n < steps; n++)
        fprintf(file, "%d,%.17g,%.17g\n", n + 1, packed->losses[n], padded->losses[n]);
    return fclose(file) == 0;
}

/* ------------------------------------------------------------------------------------------------
 * The program
 * --------------------------------------------------------------------------------------------- */

struct arguments {
    int steps;
    const char *losses, *text;
};

static bool read_arguments(int argc, char **argv, struct arguments *a)
{
    *a = (struct arguments){STEPS, NULL, NULL};
    for (int n = 1; n < argc; n++) {
        const bool more = n + 1 < argc;
        if (strcmp(argv[n], "--steps") == 0 && more)
            a->steps = (int)strtol(argv[++n], NULL, 10);
        else if (strcmp(argv[n], "--losses") == 0 && more)
            a->losses = argv[++n];
        else if (argv[n][0] != '-' && !a->text)
            a->text = argv[n];
        else
            return false;
    }
    return a->text && a->steps >= 1 && a->steps <= MOST_STEPS;
}

static int train_twice(const struct arguments *a, const struct sentences *s, attn_context *context,
                       real *room)
{
    static struct filled filled;
    static struct run packed, padded;
    if (!train(s, ATTN_PACKED, a->steps, context, &filled, room, &packed) ||
        !train(s, ATTN_PADDED, a->steps, context, &filled, room, &padded)) {
        fprintf(stderr, "train_block: %s\n", attn_last_message(context));
        return 1;
    }
    const int status = tell(s, &packed, &padded, a->steps);
    if (a->losses && !write_losses(a->losses, &packed, &padded, a->steps)) {
        perror(a->losses);
        return 1;
    }
    return status;
}

static int train_on(const struct arguments *a, const struct sentences *s)
{
    attn_context *context = NULL;
    attn_options o = attn_options_init();
    real *room = malloc(block_room(MOST_ROWS) * sizeof *room);
    int status = 1;
    o.backend = ATTN_BACKEND_CPU; /* whose results are defined bit by bit */
    o.threads = 1;                /* more would change no bit, nor be of use to so small a model */
    if (room && attn_context_create(&context, &o) == ATTN_OK)
        status = train_twice(a, s, context, room);
    else
        fprintf(stderr, "train_block: %s\n", room ? attn_last_message(NULL) : "no memory");
    attn_context_destroy(context);
    free(room);
    return status;
}

int main(int argc, char **argv)
{
    static struct sentences s;
    struct arguments a;
    if (!read_arguments(argc, argv, &a)) {
        fprintf(stderr, "usage: train_block [--steps N] [--losses FILE] TEXT\n");
        return 2;
    }
    const char *wrong = sentences_read(&s, a.text);
    int status = 1;
    if (wrong) {
        fprintf(stderr, "train_block: %s: %s\n", a.text, wrong);
    } else {
        printf("%d sentences of %d to %d characters; %d weights; %d sentences a step\n", s.count,
               s.shortest, s.longest, PARAMETERS, SEQUENCES);
        status = train_on(&a, &s);
    }
    sentences_free(&s);
    return status;
}
