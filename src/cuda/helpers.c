/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The calls around attention on a device, in the order of the context's stream and without waiting
 * for it. Arrays of integers of the host's go along as arguments of kernels; what the kernels work
 * in comes from the stream-ordered allocator and goes back to it.
 */
#include <string.h>

#include "cuda/helpers.h"
#include "cuda/host.h"
#include "parallel.h"

/* ---- A call and its memory ------------------------------------------------------------------- */

enum { PIECES = 20, PIECE_ALIGN = 256, ROW_THREADS = 256 };

/* Memory that a call needs on its device. */
struct piece {
    int64_t at;
    void *pointer;    /* to the pointer that leads to it once it is there */
    const void *from; /* the host's array that goes there; null: none does */
    int64_t bytes;
};

struct call {
    const struct attn_device_call *c;
    cudaStream_t stream;
    struct piece piece[PIECES];
    int count;
    int64_t bytes;
    char *memory;
    struct attn_cuda_before before; /* where the thread was, until the end */
};

static struct call call_of(const struct attn_device_call *c)
{
    return (struct call){.c = c, .stream = c->settings->stream};
}

/* Sizes that no memory has stay so. */
static int64_t sum(int64_t a, int64_t b)
{
    int64_t s;
    return __builtin_add_overflow(a, b, &s) ? INT64_MAX : s;
}

static void add_piece(struct call *w, void *pointer, const void *from, int64_t bytes)
{
    const int64_t room = sum(bytes, PIECE_ALIGN - 1);
    w->piece[w->count++] = (struct piece){w->bytes, pointer, from, bytes};
    w->bytes = room == INT64_MAX ? INT64_MAX : sum(w->bytes, room / PIECE_ALIGN * PIECE_ALIGN);
}

/* *pointer will have room for n entries of `size` bytes. */
static void need(struct call *w, void *pointer, int64_t n, int64_t size)
{
    add_piece(w, pointer, NULL, attn_product(n, size));
}

/* *pointer, to an array that the host may have, will be to one that the device has. */
static void stage(struct call *w, void *pointer, int64_t n, int64_t size)
{
    const void *from;
    memcpy(&from, pointer, sizeof from); /* whatever it points to */
    if (!from || attn_place_of(from).device != ATTN_HOST)
        return;
    if (n > 0)
        add_piece(w, pointer, from, attn_product(n, size));
    else
        memset(pointer, 0, sizeof from);
}

static attn_status told(const struct call *w, cudaError_t error, const char *what)
{
    return attn_cuda_status(error, what, w->c->m);
}

static attn_status put(const struct call *w, char *to, const void *from, int64_t bytes)
{
    cudaError_t error = cudaSuccess;
    for (int64_t at = 0; at < bytes && error == cudaSuccess; at += ATTN_CUDA_PUT_BYTES) {
        const int64_t n = bytes - at < ATTN_CUDA_PUT_BYTES ? bytes - at : ATTN_CUDA_PUT_BYTES;
        error = attn_cuda_put(to + at, (const char *)from + at, (size_t)n, w->stream);
    }
    return told(w, error, "passing an array");
}

/* Takes the memory and fills it with the host's arrays. */
static attn_status begin(struct call *w)
{
    struct attn_cuda_device d;
    char why[160];
    void *memory = NULL;
    attn_status status = attn_cuda_find_device(w->c->at.device, &d, why, sizeof why);
    if (status != ATTN_OK)
        return attn_say(w->c->m, status, "%s", why);
    status = attn_cuda_enter(w->c->at, &w->before, w->c->m);
    if (status == ATTN_OK && w->bytes > 0)
        status = told(w, cudaMallocAsync(&memory, (size_t)w->bytes, w->stream), "workspace");
    if (status != ATTN_OK)
        return status;
    w->memory = memory;
    for (int n = 0; n < w->count && status == ATTN_OK; n++) {
        const struct piece *x = &w->piece[n];
        char *const there = w->memory + x->at;
        memcpy(x->pointer, &there, sizeof there);
        if (x->from)
            status = put(w, there, x->from, x->bytes);
    }
    return status;
}

static attn_status end(struct call *w, attn_status status)
{
    struct attn_message *const m = w->c->m;
    if (w->memory)
        status = attn_cuda_ended(status, cudaFreeAsync(w->memory, w->stream), "workspace", m);
    return attn_cuda_go_back(status, &w->before, m);
}

static attn_status launched(const struct call *w, cudaError_t error)
{
    return told(w, error, "launching a kernel");
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The most bytes, up to 16, of which all of these are multiples. */
static int32_t unit_of(uint64_t all)
{
    int32_t unit = 16;
    while (all % (uint64_t)unit != 0)
        unit /= 2;
    return unit;
}

static struct attn_cuda_spread spread_of(int64_t units, int32_t unit)
{
    enum { EACH = 16 * ROW_THREADS }; /* units for a block, before a row is given to several */
    struct attn_cuda_spread s = {.unit = unit, .units = units};
    const int64_t parts = units / EACH;
    while (1 << s.shift < ROW_THREADS && 1 << s.shift < units)
        s.shift++;
    s.parts = parts < 1 ? 1 : parts < 256 ? parts : 256;
    return s;
}

static struct attn_cuda_copy copy_of(const struct attn_rows *r)
{
    const int32_t unit = unit_of((uintptr_t)r->from | (uintptr_t)r->to | (uint64_t)r->row_bytes);
    return (struct attn_cuda_copy){.spread = spread_of(r->row_bytes / unit, unit),
                                   .from = r->from, .to = r->to};
}

static attn_status gather(const struct attn_device_call *c, const struct attn_rows *r)
{
    struct attn_cuda_copy copy = copy_of(r);
    struct call w = call_of(c);
    copy.source = r->indices;
    copy.rows = r->count;
    copy.sources = r->total;
    stage(&w, &copy.source, r->count, sizeof *copy.source);
    attn_status status = begin(&w);
    if (status == ATTN_OK)
        status = launched(&w, attn_cuda_copy_rows(&copy, w.stream));
    return end(&w, status);
}

static attn_status pad(const struct attn_device_call *c, const struct attn_rows *r)
{
    struct attn_cuda_copy copy = copy_of(r);
    struct attn_cuda_invert v = {.indices = r->indices, .rows = r->total, .count = r->count};
    struct call w = call_of(c);
    stage(&w, &v.indices, r->count, sizeof *v.indices);
    need(&w, &v.inverse, r->total, sizeof *v.inverse);
    attn_status status = begin(&w);
    copy.source = v.inverse;
    copy.rows = r->total;
    copy.sources = r->count;
    if (status == ATTN_OK)
        status = launched(&w, attn_cuda_invert_indices(&v, w.stream));
    if (status == ATTN_OK)
        status = launched(&w, attn_cuda_copy_rows(&copy, w.stream));
    return end(&w, status);
}

/* ---- Packings -------------------------------------------------------------------------------- */

static attn_status fill(const struct call *w, const struct attn_cuda_pack *p)
{
    attn_status status = launched(w, attn_cuda_count_kept(p, w->stream));
    if (status == ATTN_OK)
        status = launched(w, attn_cuda_scan(p->starts, p->units, w->stream));
    if (status == ATTN_OK)
        status = launched(w, attn_cuda_fill_packing(p, w->stream));
    return status;
}

static attn_status copy_kept(const struct call *w, const struct attn_cuda_pack *p,
                             const struct attn_rows *r)
{
    struct attn_cuda_copy copy = copy_of(r);
    copy.source = p->indices;
    copy.rows = copy.sources = r->total;
    copy.rows_at = p->starts + p->units;
    return launched(w, attn_cuda_copy_rows(&copy, w->stream));
}

static attn_status pack(const struct attn_device_call *c, const struct attn_kept *kept,
                        const attn_packing *packing, const struct attn_rows *r)
{
    const int64_t chunks = kept->seqlen / ATTN_CUDA_CHUNK + (kept->seqlen % ATTN_CUDA_CHUNK > 0);
    const bool rows = r && r->total > 0 && r->row_bytes > 0;
    struct attn_cuda_pack p = {.kept = *kept, .chunks = chunks > 1 ? chunks : 1,
                               .indices = packing->indices, .cu_seqlens = packing->cu_seqlens,
                               .lengths = packing->lengths};
    struct call w = call_of(c);
    p.units = kept->batch * p.chunks;
    stage(&w, &p.kept.lengths, kept->batch, sizeof *kept->lengths);
    need(&w, &p.starts, p.units + 1, sizeof *p.starts);
    if (rows && !p.indices)
        need(&w, &p.indices, r->total, sizeof *p.indices);
    attn_status status = begin(&w);
    if (status == ATTN_OK)
        status = fill(&w, &p);
    if (status == ATTN_OK && rows)
        status = copy_kept(&w, &p, r);
    return end(&w, status);
}

static attn_status positions(const struct attn_device_call *c, const struct attn_positions *given,
                             int64_t rows)
{
    struct attn_positions p = *given;
    struct call w = call_of(c);
    if (rows == 0 || p.batch == 0)
        return ATTN_OK;
    stage(&w, &p.cu_seqlens, p.batch + 1, sizeof *p.cu_seqlens);
    stage(&w, &p.offsets, p.batch, sizeof *p.offsets);
    attn_status status = begin(&w);
    if (status == ATTN_OK)
        status = launched(&w, attn_cuda_put_positions(&p, rows, w.stream));
    return end(&w, status);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* Sorts into either of the two; *sorted becomes that one. */
static attn_status sort(const struct call *w, struct attn_cuda_sort *s, int64_t *const order[2],
                        int64_t **sorted)
{
    attn_status status = ATTN_OK;
    int pass = 0;
    for (; s->count > 0 && status == ATTN_OK && pass < 8 && s->rows >> 8 * pass > 0;
         pass++) {
        s->shift = 8 * pass;
        s->from = pass ? order[(pass - 1) % 2] : NULL;
        s->to = order[pass % 2];
        status = launched(w, attn_cuda_count_digits(s, w->stream));
        if (status == ATTN_OK)
            status = launched(w, attn_cuda_scan(s->starts, ATTN_CUDA_DIGITS * s->tiles, w->stream));
        if (status == ATTN_OK)
            status = launched(w, attn_cuda_place_digits(s, w->stream));
    }
    *sorted = order[(pass + 1) % 2];
    return status;
}

static attn_status sum_rows(const struct attn_device_call *c, const struct attn_sums *given)
{
    struct attn_cuda_sum a = {*given, spread_of(given->width, 1)};
    struct attn_cuda_sort s = {
        .indices = given->indices, .count = given->count, .rows = given->total,
        .tiles = given->count / ATTN_CUDA_TILE + (given->count % ATTN_CUDA_TILE > 0)};
    int64_t *order[2] = {NULL, NULL};
    struct call w = call_of(c);
    stage(&w, &s.indices, s.count, sizeof *s.indices);
    if (s.count > 0) {
        need(&w, &order[0], s.count, sizeof *order[0]);
        need(&w, &order[1], s.count, sizeof *order[1]);
        need(&w, &s.starts, ATTN_CUDA_DIGITS * s.tiles + 1, sizeof *s.starts);
    }
    attn_status status = begin(&w);
    if (status == ATTN_OK)
        status = sort(&w, &s, order, &a.sums.order);
    a.sums.indices = s.indices;
    if (status == ATTN_OK)
        status = launched(&w, attn_cuda_sum_rows(&a, w.stream));
    return end(&w, status);
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static void stage_axis(struct call *w, struct attn_axis *a, int64_t batch)
{
    stage(w, &a->cu, batch + 1, a->cu64 ? 8 : 4);
    stage(w, &a->used, batch, a->used64 ? 8 : 4);
}

static void stage_tokens(struct call *w, struct attn_cuda_move *m)
{
    struct attn_tokens *t = &m->tokens;
    const struct attn_axis *a = &t->from;
    stage_axis(w, &t->from, t->batch);
    stage(w, &t->positions.data, a->cu ? a->rows : attn_product(t->batch, a->span),
          t->positions.is64 ? 8 : 4);
    if (t->rotation.dim > 0)
        need(w, &m->frequency, t->rotation.dim / 2, sizeof *m->frequency);
}

/* ---- What the host could not read ------------------------------------------------------------ */

/* Room for sound copies of an axis' offsets, where they are to be made, and lengths. */
static void need_axis(struct call *w, struct attn_axis *to, const struct attn_axis *given, bool cu,
                      int64_t batch)
{
    *to = *given;
    if (cu)
        need(w, &to->cu, batch + 1, given->cu64 ? 8 : 4);
    to->used64 = given->used64 || !given->used;
    need(w, &to->used, batch, to->used64 ? 8 : 4);
}

static void need_sound(struct call *w, struct attn_cuda_soundness *s, const struct attn_tokens *t,
                       bool cache)
{
    *s = (struct attn_cuda_soundness){.batch = t->batch, .report = t->report};
    if (!t->unread)
        return;
    need_axis(w, &s->sound.query, &t->from, t->unread & ATTN_BIT(ATTN_QUERY_CU), t->batch);
    if (cache)
        need_axis(w, &s->sound.key, &t->to, t->unread & ATTN_BIT(ATTN_KEY_CU), t->batch);
    if (!s->report)
        need(w, &s->report, 1, sizeof *s->report);
}

/* An axis that goes by the sound copies; its table stays as it is given: what names no page is left
 * out where it is looked up. */
static void follow(struct attn_axis *axis, struct attn_axis *sound, bool cu)
{
    if (!cu)
        sound->cu = axis->cu;
    sound->table = NULL;
    axis->cu = sound->cu;
    axis->used = sound->used;
    axis->used64 = sound->used64;
}

/* Makes them, and tokens that go by them. */
static attn_status make_sound(const struct call *w, struct attn_cuda_soundness *s,
                              struct attn_tokens *t, bool cache)
{
    if (!t->unread)
        return ATTN_OK;
    s->given.query = t->from;
    follow(&t->from, &s->sound.query, t->unread & ATTN_BIT(ATTN_QUERY_CU));
    if (cache) {
        s->given.key = t->to;
        follow(&t->to, &s->sound.key, t->unread & ATTN_BIT(ATTN_KEY_CU));
    }
    attn_status status = launched(w, attn_cuda_make_sound(s, w->stream));
    if (status == ATTN_OK && cache)
        status = launched(w, attn_cuda_fit_append(s, w->stream));
    return status;
}

/* ---- A cache's table ------------------------------------------------------------------------- */

/*
 * Of a table in host memory no more goes along than the pages that tokens join: of each sequence as
 * many columns, from the page on that its first new token comes to. From there its places count,
 * those of the window: so many of that page are taken.
 */
struct window {
    const struct attn_tokens *t; /* as the caller gave them */
    int64_t columns;             /* 0: none; the table goes along whole or is the device's */
    void *table, *taken;         /* on the device, of the types of the table and of the lengths */
};

/* At least one. */
static int64_t columns_of(const struct attn_tokens *t)
{
    const int64_t size = t->to.page_size;
    int64_t most = 1;
    for (int64_t b = 0; b < t->batch; b++) {
        const int64_t before = attn_axis_len(&t->to, b), n = attn_axis_len(&t->from, b);
        const int64_t columns = n > 0 ? (before + n - 1) / size - before / size + 1 : 0;
        most = columns > most ? columns : most;
    }
    return most;
}

static void stage_table(struct call *w, struct window *x, struct attn_axis *to,
                        const struct attn_tokens *t)
{
    const int64_t size = to->table64 ? 8 : 4;
    *x = (struct window){.t = t};
    if (to->table && !t->unread && attn_place_of(to->table).device == ATTN_HOST)
        x->columns = columns_of(t);
    if (x->columns == 0) {
        stage(w, &to->table, attn_product(t->batch, to->max_pages), size);
        return;
    }
    need(w, &x->table, attn_product(t->batch, x->columns), size);
    need(w, &x->taken, t->batch, to->used64 ? 8 : 4);
}

static int64_t page_of(const struct window *x, int64_t n)
{
    const struct attn_axis *const a = &x->t->to;
    const int64_t b = n / x->columns;
    const int64_t column = attn_axis_len(a, b) / a->page_size + n % x->columns;
    return column < a->max_pages ? attn_index_at(a->table, a->table64, b * a->max_pages + column)
                                 : 0;
}

static int64_t taken_of(const struct window *x, int64_t b)
{
    return attn_axis_len(&x->t->to, b) % x->t->to.page_size;
}

static attn_status put_entries(const struct call *w, const struct window *x, void *to,
                               int64_t count, bool is64,
                               int64_t (*entry)(const struct window *x, int64_t n))
{
    char part[ATTN_CUDA_PUT_BYTES];
    const int64_t size = is64 ? 8 : 4, most = ATTN_CUDA_PUT_BYTES / size;
    attn_status status = ATTN_OK;
    for (int64_t at = 0; at < count && status == ATTN_OK; at += most) {
        const int64_t n = count - at < most ? count - at : most;
        for (int64_t i = 0; i < n; i++) {
            const int64_t wide = entry(x, at + i);
            const int32_t narrow = (int32_t)wide;
            memcpy(part + i * size, is64 ? (const void *)&wide : &narrow, (size_t)size);
        }
        status = put(w, (char *)to + at * size, part, n * size);
    }
    return status;
}

/* The places that tokens go to become those of the window. */
static attn_status open_window(const struct call *w, const struct window *x, struct attn_axis *to)
{
    const int64_t batch = x->t->batch;
    if (x->columns == 0)
        return ATTN_OK;
    attn_status status =
        put_entries(w, x, x->table, batch * x->columns, to->table64, page_of);
    if (status == ATTN_OK)
        status = put_entries(w, x, x->taken, batch, to->used64, taken_of);
    to->table = x->table;
    to->used = x->taken;
    to->max_pages = x->columns;
    return status;
}

/* ---- Moves ----------------------------------------------------------------------------------- */

static struct attn_cuda_move move_of(const struct attn_tokens *t)
{
    const int64_t size = attn_dtype_size(t->dtype), dim = t->rotation.dim;
    const uint64_t steps = (uint64_t)(t->x.batch | t->x.token | t->x.head | t->out.batch |
                                      t->out.token | t->out.head | t->head_dim | dim) *
                           (uint64_t)size;
    struct attn_cuda_move m = {.tokens = *t, .heads = t->heads, .run = (t->head_dim - dim) * size};
    m.unit = unit_of((uintptr_t)t->x.data | (uintptr_t)t->out.data | steps);
    if (dim == 0 && t->x.head == t->head_dim && t->out.head == t->head_dim) {
        m.heads = 1;
        m.run *= t->heads;
    }
    m.tokens.rotation.frequency = NULL;
    return m;
}

/* Frequencies of all pairs, as the host finds them. */
static attn_status put_frequencies(const struct call *w, const attn_rotation *r,
                                   const struct attn_twofold *to)
{
    struct attn_angles a;
    attn_status status = ATTN_OK;
    attn_angles_begin(&a, r, false);
    while (status == ATTN_OK && attn_angles_next(&a))
        status = put(w, (char *)(to + a.first), a.frequency,
                     a.pairs * (int64_t)sizeof *a.frequency);
    return status;
}

static attn_status move(const struct call *w, const struct attn_cuda_move *m,
                        const attn_rotation *rotation)
{
    const struct attn_tokens *t = &m->tokens;
    attn_status status = ATTN_OK;
    if (t->from.rows == 0 || t->heads == 0)
        return ATTN_OK;
    if (m->frequency)
        status = put_frequencies(w, rotation, m->frequency);
    if (status == ATTN_OK)
        status = launched(w, attn_cuda_move_tokens(m, w->stream));
    return status;
}

static attn_status rotate(const struct attn_device_call *c, const struct attn_tokens *t)
{
    struct attn_cuda_move m = move_of(t);
    struct attn_cuda_soundness s;
    struct call w = call_of(c);
    m.clear = true;
    stage_tokens(&w, &m);
    stage(&w, &m.tokens.offsets.data, t->batch, t->offsets.is64 ? 8 : 4);
    need_sound(&w, &s, t, false);
    attn_status status = begin(&w);
    if (status == ATTN_OK)
        status = make_sound(&w, &s, &m.tokens, false);
    m.tokens.to = m.tokens.from;
    if (status == ATTN_OK)
        status = move(&w, &m, &t->rotation);
    return end(&w, status);
}

/* Values go the way of their keys. */
static attn_status move_values(const struct call *w, const struct attn_append *a,
                               const struct attn_tokens *keys)
{
    struct attn_cuda_move m = move_of(&a->v);
    m.tokens.from = keys->from;
    m.tokens.to = keys->to;
    m.tokens.shift = m.tokens.offsets = keys->shift;
    m.tokens.positions.data = NULL;
    return move(w, &m, &a->v.rotation);
}

static attn_status append(const struct attn_device_call *c, const struct attn_append *a)
{
    struct attn_cuda_move m = move_of(&a->k);
    struct attn_tokens *t = &m.tokens;
    struct attn_cuda_soundness s;
    struct window x;
    struct call w = call_of(c);
    stage_tokens(&w, &m);
    stage_axis(&w, &t->to, t->batch);
    stage_table(&w, &x, &t->to, &a->k);
    need_sound(&w, &s, t, true);
    attn_status status = begin(&w);
    if (status == ATTN_OK)
        status = make_sound(&w, &s, t, true);
    t->shift.data = t->offsets.data = t->to.used;
    const struct attn_axis cache = t->to;
    if (status == ATTN_OK)
        status = open_window(&w, &x, &t->to);
    if (status == ATTN_OK)
        status = move(&w, &m, &a->k.rotation);
    if (status == ATTN_OK && a->values)
        status = move_values(&w, a, t);
    if (status == ATTN_OK && a->lengths) {
        struct attn_cuda_lengths l = {*a};
        l.append.k = *t;
        l.append.k.to = cache;
        l.append.k.to.table = NULL;
        memset(&l.append.v, 0, sizeof l.append.v);
        status = launched(&w, attn_cuda_put_lengths(&l, w.stream));
    }
    return end(&w, status);
}

/* ---- Partial results ------------------------------------------------------------------------- */

static attn_status merge(const struct attn_device_call *c, const struct attn_partials *given)
{
    struct attn_partials m = *given;
    struct call w = call_of(c);
    if (m.batch == 0 || m.seqlen == 0 || m.heads == 0)
        return ATTN_OK;
    stage(&w, &m.part_out, m.parts, sizeof *m.part_out);
    stage(&w, &m.part_lse, m.parts, sizeof *m.part_lse);
    attn_status status = begin(&w);
    if (status == ATTN_OK)
        status = launched(&w, attn_cuda_merge_rows(&m, w.stream));
    return end(&w, status);
}

/* ---- Reports --------------------------------------------------------------------------------- */

static attn_status told_of(const struct attn_device_call *c, const uint64_t *report,
                           const struct attn_reported *what)
{
    struct call w = call_of(c);
    attn_status status = begin(&w);
    if (status == ATTN_OK)
        status = attn_cuda_told(report, what, w.stream, c->m);
    return end(&w, status);
}

const struct attn_device_ops attn_cuda_device_ops = {
    pack, pad, gather, sum_rows, positions, rotate, append, merge, told_of};
