/* SPDX-License-Identifier: BSD-3-Clause */
#include "layers.h"

#include <stdbool.h>
#include <string.h>
#include <tgmath.h>

enum { MOST_WIDTH = 128, MOST_WEIGHTS = 64 * 128 };

/* y += a x, four rows x at a time: less to load and to store. */
static void add_four(real *restrict y, const real a[4], const real *const x[4], int n)
{
    const real a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
    const real *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    for (int i = 0; i < n; i++)
        y[i] += (a0 * x0[i] + a1 * x1[i]) + (a2 * x2[i] + a3 * x3[i]);
}

void multiply(struct tokens t, const real *x, const real *w, int inputs, int outputs, real *y)
{
    for (int64_t n = 0; n < t.count; n++) {
        real *to = y + t.row[n] * outputs;
        memset(to, 0, (size_t)outputs * sizeof *to);
        for (int i = 0; i < inputs; i += 4) {
            const real *const rows[] = {w + i * outputs, w + (i + 1) * outputs,
                                        w + (i + 2) * outputs, w + (i + 3) * outputs};
            add_four(to, x + t.row[n] * inputs + i, rows, outputs);
        }
    }
}

/* dw += x^T dy; behind the last token stand zeros. */
static void add_products(struct tokens t, const real *x, const real *dy, int inputs, int outputs,
                         real *dw)
{
    static const real zeros[MOST_WIDTH];
    for (int64_t n = 0; n < t.count; n += 4) {
        const real *rows[4], *from[4];
        for (int k = 0; k < 4; k++) {
            const bool token = n + k < t.count;
            from[k] = token ? x + t.row[n + k] * inputs : zeros;
            rows[k] = token ? dy + t.row[n + k] * outputs : zeros;
        }
        for (int i = 0; i < inputs; i++) {
            const real a[] = {from[0][i], from[1][i], from[2][i], from[3][i]};
            add_four(dw + i * outputs, a, rows, outputs);
        }
    }
}

void multiply_back(struct tokens t, const real *x, const real *w, const real *dy, int inputs,
                   int outputs, real *dx, real *dw)
{
    real transposed[MOST_WEIGHTS] = {0}; /* so that the inner loop runs along rows */
    for (int i = 0; i < inputs; i++)
        for (int o = 0; o < outputs; o++)
            transposed[o * inputs + i] = w[i * outputs + o];
    multiply(t, dy, transposed, outputs, inputs, dx);
    add_products(t, x, dy, inputs, outputs, dw);
}

/* 1 / sqrt(mean of x^2), with a little added so that it stays finite. */
static real norm_scale(const real *x, int width)
{
    real squares = 0;
    for (int i = 0; i < width; i++)
        squares += x[i] * x[i];
    return 1 / sqrt(squares / (real)width + (real)1e-6);
}

void normalize(struct tokens t, const real *x, const real *w, int width, real *y)
{
    for (int64_t n = 0; n < t.count; n++) {
        const int64_t at = t.row[n] * width;
        const real scale = norm_scale(x + at, width);
        for (int i = 0; i < width; i++)
            y[at + i] = x[at + i] * scale * w[i];
    }
}

void normalize_back(struct tokens t, const real *x, const real *w, const real *dy, int width,
                    real *dx, real *dw)
{
    for (int64_t n = 0; n < t.count; n++) {
        const int64_t at = t.row[n] * width;
        const real scale = norm_scale(x + at, width);
        real along = 0; /* of the gradient, along x */
        for (int i = 0; i < width; i++) {
            along += dy[at + i] * w[i] * x[at + i];
            dw[i] += dy[at + i] * x[at + i] * scale;
        }
        along *= scale * scale / (real)width;
        for (int i = 0; i < width; i++)
            dx[at + i] += scale * (dy[at + i] * w[i] - along * x[at + i]);
    }
}

void apply_gate(struct tokens t, const real *gate, const real *up, int width, real *y)
{
    for (int64_t n = 0; n < t.count; n++)
        for (int64_t i = t.row[n] * width; i < (t.row[n] + 1) * width; i++)
            y[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
}

void apply_gate_back(struct tokens t, const real *gate, const real *up, const real *dy, int width,
                     real *dgate, real *dup)
{
    for (int64_t n = 0; n < t.count; n++)
        for (int64_t i = t.row[n] * width; i < (t.row[n] + 1) * width; i++) {
            const real s = 1 / (1 + exp(-gate[i]));
            dup[i] = dy[i] * gate[i] * s;
            dgate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
        }
}

void add(struct tokens t, const real *x, int width, real *y)
{
    for (int64_t n = 0; n < t.count; n++)
        for (int64_t i = t.row[n] * width; i < (t.row[n] + 1) * width; i++)
            y[i] += x[i];
}

/* The loss of one token; its logits become the gradient, for a weight of 1 / count. */
static double token_loss(real *logits, int width, int64_t target, int64_t count)
{
    real most = logits[0], sum = 0;
    for (int i = 1; i < width; i++)
        most = logits[i] > most ? logits[i] : most;
    const real wanted = logits[target] - most;
    for (int i = 0; i < width; i++) {
        logits[i] = exp(logits[i] - most);
        sum += logits[i];
    }
    for (int i = 0; i < width; i++)
        logits[i] = (logits[i] / sum - (i == target)) / (real)count;
    return (double)(log(sum) - wanted);
}

double cross_entropy(struct tokens t, const int64_t *targets, int width, real *logits)
{
    double sum = 0;
    for (int64_t n = 0; n < t.count; n++)
        sum += token_loss(logits + t.row[n] * width, width, targets[t.row[n]], t.count);
    return sum / (double)t.count;
}
