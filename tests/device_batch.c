/* SPDX-License-Identifier: BSD-3-Clause */
/* Batch helpers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "device_arrays.h"
#include "element.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "test_device_helpers.h"

enum { CANARY = -77 };

/* Mostly small; now and then more tokens than a unit of the kernels has, or more units than are
 * summed at once. */
static void draw_extents(int64_t *b, int64_t *s)
{
    const int64_t kind = below(12);
    *b = kind == 0 ? 200 + below(200) : kind == 1 ? 0 : below(7);
    *s = kind == 0 ? below(4) : kind == 2 ? 500 + below(700) : kind == 3 ? 0 : below(60);
}

static struct array *draw_mask(int64_t b, int64_t s)
{
    struct array *a = new_array((size_t)(b * s), false);
    for (int64_t n = 0; n < b; n++) {
        const int64_t kind = below(5), cut = below(s + 1);
        for (int64_t i = 0; i < s; i++)
            a->host[n * s + i] = (char)((kind == 0   ? maybe(60)
                                         : kind == 1 ? i >= cut
                                         : kind == 2 ? i < cut
                                                     : kind == 3) ? 1 + below(255) : 0);
    }
    place(a, 1, false);
    return a;
}

struct packing {
    struct array *indices, *cu, *lengths; /* null: not wanted */
};

static struct packing draw_packing(int64_t b, int64_t total)
{
    struct packing p = {NULL, NULL, NULL};
    if (maybe(80))
        p.indices = output((size_t)total * sizeof(int64_t), sizeof(int64_t));
    if (maybe(80))
        p.cu = output((size_t)(b + 1) * sizeof(int32_t), sizeof(int32_t));
    if (maybe(80))
        p.lengths = output((size_t)b * sizeof(int32_t), sizeof(int32_t));
    return p;
}

static attn_packing packing_of(const struct packing *p, bool device)
{
    return (attn_packing){of(p->indices, device), of(p->cu, device), of(p->lengths, device), CANARY,
                          CANARY};
}

static int64_t count_kept(const struct array *mask)
{
    int64_t total = 0;
    for (size_t n = 0; n < mask->bytes; n++)
        total += mask->host[n] != 0;
    return total;
}

static void expect_numbers(const attn_packing *got, int64_t total, int64_t longest)
{
    EXPECT(got->total == total && got->max_seqlen == longest,
           "%s %lld: total %lld, longest %lld; expected %lld and %lld", now.what,
           (long long)now.seed, (long long)got->total, (long long)got->max_seqlen,
           (long long)total, (long long)longest);
}

void test_from_mask(int64_t seed)
{
    int64_t b, s;
    begin_case("packing_from_mask", seed);
    draw_extents(&b, &s);
    const struct array *mask = draw_mask(b, s);
    const struct packing p = draw_packing(b, count_kept(mask));
    attn_packing host = packing_of(&p, false), device = packing_of(&p, true);
    const attn_status h = attn_packing_from_mask(NULL, b, s, of(mask, false), &host);
    begin_call(2);
    const attn_status d = attn_packing_from_mask(NULL, b, s, of(mask, true), &device);
    end_call(h, d);
    if (b > 0 && s > 0)
        expect_numbers(&device, -1, -1);
    end_case();
}

/* Of lengths on a device some may be wrong: they are clamped. */
void test_from_lengths(int64_t seed)
{
    int64_t b, s, total = 0;
    begin_case("packing_from_lengths", seed);
    draw_extents(&b, &s);
    struct array *lengths = integers32(b);
    int32_t *const l = (int32_t *)lengths->host;
    for (int64_t n = 0; n < b; n++)
        total += l[n] = (int32_t)below(s + 1);
    const bool in_place = maybe(30);
    lengths->written = in_place;
    place(lengths, sizeof *l, !in_place);
    struct packing p = draw_packing(b, total);
    if (in_place)
        p.lengths = lengths;
    else if (!p.indices && !p.cu && !p.lengths)
        p.cu = output((size_t)(b + 1) * sizeof(int32_t), sizeof(int32_t));
    attn_packing host = packing_of(&p, false), device = packing_of(&p, true);
    const attn_status h = attn_packing_from_lengths(NULL, b, s, of(lengths, false), &host);
    for (int64_t n = 0; lengths->device && n < b; n++) {
        int32_t *const wrong = (int32_t *)lengths->device + n;
        if ((l[n] == 0 || l[n] == s) && maybe(50))
            *wrong = l[n] == s && maybe(50) ? INT32_MAX : l[n] == 0 ? -5 : (int32_t)s + 1;
    }
    begin_call(2);
    const attn_status d = attn_packing_from_lengths(NULL, b, s, of(lengths, true), &device);
    end_call(h, d);
    if (lengths->spoilt)
        expect_numbers(&device, host.total, host.max_seqlen);
    else if (b > 0)
        expect_numbers(&device, -1, -1);
    if (lengths->device && !in_place)
        memcpy(lengths->device, lengths->host, lengths->bytes);
    end_case();
}

attn_dtype draw_real_type(void)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    return types[below(4)];
}

static attn_dtype draw_type(void) { return maybe(20) ? ATTN_BOOL : draw_real_type(); }

static int64_t draw_width(void)
{
    return maybe(8) ? 4000 + below(40000) : maybe(20) ? 64 * (1 + below(8)) : 1 + below(20);
}

static int64_t type_size(attn_dtype type)
{
    return type == ATTN_BOOL ? 1 : (int64_t)element_size(type);
}

/* Rows of any bytes. */
static struct array *draw_rows(attn_dtype type, int64_t rows, int64_t width)
{
    struct array *a = new_array((size_t)(rows * width * type_size(type)), false);
    for (size_t n = 0; n < a->bytes; n++)
        a->host[n] = (char)rng_next(&now.rng);
    place(a, (size_t)type_size(type), false);
    return a;
}

static struct array *rows_out(attn_dtype type, int64_t rows, int64_t width)
{
    return output((size_t)(rows * width * type_size(type)), (size_t)type_size(type));
}

void test_unpad(int64_t seed)
{
    int64_t b, s;
    begin_case("unpad", seed);
    draw_extents(&b, &s);
    const attn_dtype type = draw_type();
    const int64_t width = b * s > 300 ? 1 + below(9) : draw_width();
    const struct array *mask = draw_mask(b, s), *x = draw_rows(type, b * s, width);
    const int64_t total = count_kept(mask);
    const struct packing p = draw_packing(b, total);
    const struct array *packed = known_output((size_t)(total * width * type_size(type)), 1);
    attn_packing host = packing_of(&p, false), device = packing_of(&p, true);
    const attn_status h = attn_unpad(NULL, type, b, s, width, of(x, false), of(mask, false),
                                     of(packed, false), &host);
    begin_call(2);
    const attn_status d =
        attn_unpad(NULL, type, b, s, width, of(x, true), of(mask, true), of(packed, true), &device);
    end_call(h, d);
    end_case();
}

/* Indices below rows; or each below count once, in any order. */
static struct array *draw_indices(int64_t count, int64_t rows, bool unique)
{
    struct array *a = new_array((size_t)count * sizeof(int64_t), false);
    int64_t *const x = (int64_t *)a->host;
    const int64_t hot = rows > 0 ? below(rows) : 0;
    const bool often = maybe(30);
    for (int64_t n = 0; n < count; n++)
        x[n] = unique ? n : often && maybe(70) ? hot : below(rows);
    for (int64_t n = unique && maybe(60) ? count : 0; n > 1; n--) { /* in any order */
        const int64_t other = below(n), kept = x[n - 1];
        x[n - 1] = x[other];
        x[other] = kept;
    }
    place(a, sizeof *x, true);
    return a;
}

void test_pad(int64_t seed)
{
    begin_case("pad", seed);
    const attn_dtype type = draw_type();
    const int64_t rows = below(300), total = below(rows + 1);
    const int64_t width = rows > 60 ? 1 + below(20) : draw_width();
    const struct array *packed = draw_rows(type, total, width);
    const struct array *indices = draw_indices(total, rows, true);
    const struct array *x = rows_out(type, rows, width);
    const attn_status h = attn_pad(NULL, type, rows, width, of(packed, false), of(indices, false),
                                   total, of(x, false));
    begin_call(2);
    const attn_status d =
        attn_pad(NULL, type, rows, width, of(packed, true), of(indices, true), total, of(x, true));
    end_call(h, d);
    end_case();
}

/* On a device indices may repeat, and the last one's row is left; what names no row is left out. */
void test_pad_anyhow(int64_t seed)
{
    enum { WIDTH = 3 };
    begin_case("pad, wrong indices", seed);
    const int64_t rows = 1 + below(60), total = below(rows + 1);
    const struct array *packed = draw_rows(ATTN_F32, total, WIDTH);
    struct array *indices = new_array((size_t)total * sizeof(int64_t), false);
    struct array *x = rows_out(ATTN_F32, rows, WIDTH);
    memset(x->host, 0, x->bytes);
    for (int64_t n = 0; n < total; n++) {
        static const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX, 0};
        const int64_t kind = below(12);
        int64_t *const at = (int64_t *)indices->host + n;
        *at = kind < 3 ? wrong[kind] : kind == 3 ? rows : below(rows);
        if (*at >= 0 && *at < rows)
            memcpy(x->host + *at * WIDTH * 4, packed->host + n * WIDTH * 4, WIDTH * 4);
    }
    place(indices, sizeof(int64_t), false);
    begin_call(2);
    const attn_status d = attn_pad(NULL, ATTN_F32, rows, WIDTH, of(packed, true), of(indices, true),
                                   total, of(x, true));
    end_call(ATTN_OK, d);
    end_case();
}

void test_gather(int64_t seed)
{
    begin_case("gather", seed);
    const attn_dtype type = draw_type();
    const int64_t rows = 1 + below(90), count = below(200);
    const int64_t width = count > 40 ? 1 + below(40) : draw_width();
    const size_t row = (size_t)(width * type_size(type));
    const struct array *x = draw_rows(type, rows, width);
    struct array *indices = draw_indices(count, rows, false);
    const struct array *out = rows_out(type, count, width);
    const attn_status h = attn_gather(NULL, type, rows, width, of(x, false), of(indices, false),
                                      count, of(out, false));
    for (int64_t n = 0; indices->device && n < count; n++)
        if (maybe(5)) { /* names no row: 0 */
            ((int64_t *)indices->device)[n] = maybe(50) ? -1 - below(9) : rows + below(9);
            memset(out->host + (size_t)n * row, 0, row);
        }
    begin_call(2);
    const attn_status d =
        attn_gather(NULL, type, rows, width, of(x, true), of(indices, true), count, of(out, true));
    end_call(h, d);
    if (indices->device)
        memcpy(indices->device, indices->host, indices->bytes);
    end_case();
}

/* Many rows: the sort takes several passes; many indices: several tiles. */
void test_gather_backward(int64_t seed)
{
    begin_case("gather_backward", seed);
    const attn_dtype type = draw_real_type();
    const int64_t kind = below(12);
    const int64_t rows = kind == 0 ? 66000 : kind < 3 ? 256 + below(600) : below(90);
    const int64_t count = rows == 0 ? 0 : kind == 1 ? 4000 + below(6000) : below(300);
    const int64_t width = kind < 3 ? 1 + below(3) : count > 60 ? 1 + below(40) : 1 + below(400);
    const struct array *dout = numbers(type, count * width);
    struct array *indices = draw_indices(count, rows, false);
    const struct array *dx = rows_out(type, rows, width);
    const attn_status h = attn_gather_backward(NULL, type, rows, width, of(dout, false),
                                               of(indices, false), count, of(dx, false));
    begin_call(2);
    const attn_status d = attn_gather_backward(NULL, type, rows, width, of(dout, true),
                                               of(indices, true), count, of(dx, true));
    end_call(h, d);
    end_case();
}

/* What names no row is in no sum. */
void test_backward_anyhow(int64_t seed)
{
    enum { WIDTH = 2 };
    begin_case("gather_backward, wrong indices", seed);
    const int64_t rows = maybe(30) ? 256 : 1 + below(300), count = below(200);
    const struct array *dout = numbers(ATTN_F64, count * WIDTH);
    struct array *indices = new_array((size_t)count * sizeof(int64_t), false);
    struct array *dx = rows_out(ATTN_F64, rows, WIDTH);
    memset(dx->host, 0, dx->bytes);
    for (int64_t n = 0; n < count; n++) {
        int64_t *const at = (int64_t *)indices->host + n;
        *at = maybe(80) ? below(rows) : maybe(50) ? -1 - below(1000) : rows + below(1000);
        for (int c = 0; c < WIDTH && *at >= 0 && *at < rows; c++)
            ((double *)dx->host)[*at * WIDTH + c] += ((double *)dout->host)[n * WIDTH + c];
    }
    place(indices, sizeof(int64_t), false);
    begin_call(2);
    const attn_status d = attn_gather_backward(NULL, ATTN_F64, rows, WIDTH, of(dout, true),
                                               of(indices, true), count, of(dx, true));
    end_call(ATTN_OK, d);
    end_case();
}

void test_positions(int64_t seed)
{
    int64_t total;
    begin_case("position_ids", seed);
    const int64_t b = below(9);
    struct array *cu = draw_cu(b, 50, &total), *offsets = maybe(60) ? integers32(b) : NULL;
    place(cu, sizeof(int32_t), true);
    for (int64_t n = 0; offsets && n < b; n++)
        ((int32_t *)offsets->host)[n] = (int32_t)(below(2000) - 1000);
    if (offsets)
        place(offsets, sizeof(int32_t), true);
    const struct array *positions = known_output((size_t)total * sizeof(int64_t), sizeof(int64_t));
    const attn_status h = attn_position_ids(NULL, b, of(cu, false), of(offsets, false),
                                            of(positions, false));
    begin_call(2);
    const attn_status d =
        attn_position_ids(NULL, b, of(cu, true), of(offsets, true), of(positions, true));
    end_call(h, d);
    end_case();
}
