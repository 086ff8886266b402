/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Products of warpgroups, and their registers. Each warp computes its own quarter. From the
 * beginning of a product to the wait for it the sums are NaN, the operands are read at the one time
 * or the other, and what is changed in between is a fault.
 */
#include <string.h>

#include <list>

#include "emulator/inner.h"

namespace emulator {

enum { DEPTH = 16, MOST_COLUMNS = 256, REGISTERS = 65536 };

/* Sums that products are under way to; the registers are NaN meanwhile. */
struct sums {
    float *c[LANES];
    int n;
    std::vector<float> x; /* [16][n] */
    int under_way;
};

struct begun_product {
    product p; /* but for what lanes have of their own */
    const uint32_t *held[LANES];
    uint32_t fragment[LANES][4];
    sums *to;
    bool done;
};

struct warp_products {
    bool begun = false; /* since the last group */
    std::vector<std::shared_ptr<begun_product>> open;
    std::deque<std::vector<std::shared_ptr<begun_product>>> groups;
    std::list<sums> all;
    uint64_t said = 0; /* of all products so far: the same for the four warps */
};

/* A NaN that any computation changes. */
static const uint32_t POISON = 0x7fa51e57;

uint32_t shared_address(const void *p)
{
    return (uint32_t)(SHARED_BASE + place_of("shared_address", p, 0));
}

static warp *this_warp() { return &m.current->home->warps[(size_t)m.current->index / LANES]; }

static warp_products *products_of(warp *w)
{
    if (!w->products)
        w->products = std::make_shared<warp_products>();
    return w->products.get();
}

/* ---- Matrices in shared memory -------------------------------------------------------------- */

struct matrix {
    uint32_t start, lead, stride, swizzle;
};

static matrix matrix_of(uint64_t descriptor)
{
    static const uint32_t swizzles[4] = {0, 3, 2, 1};
    matrix x;
    x.start = (uint32_t)(descriptor & 0x3fff) << 4;
    x.lead = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    x.stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    x.swizzle = swizzles[descriptor >> 62];
    if (descriptor & ~UINT64_C(0xc0003fff3fff3fff))
        fault("product: bits of a descriptor that are nothing: %llx",
              (unsigned long long)descriptor);
    if (x.start >> 7 & ((1u << x.swizzle) - 1))
        fault("product: a matrix at %u, within a pattern of its swizzle", x.start);
    if (x.start < SHARED_BASE)
        fault("product: a matrix at %u, and shared memory begins at %d", x.start, (int)SHARED_BASE);
    return x;
}

/* Where eight elements are side by side: row r of a matrix with its depth side by side, from depth
 * k on; or, of one with its rows side by side, rows from r on at depth k. */
static size_t place_of_eight(const matrix &x, bool rows, uint32_t r, uint32_t k)
{
    const uint32_t width = 16u << x.swizzle; /* bytes */
    uint32_t at = x.start;
    if (!rows)
        at += r / 8 * x.stride + r % 8 * width + (x.swizzle ? k * 2 : k / 8 * x.lead);
    else if (x.swizzle)
        at += r / (width / 2) * x.lead + r % (width / 2) * 2 + k / 8 * x.stride + k % 8 * width;
    else
        at += r / 8 * x.stride + k / 8 * x.lead + k % 8 * width;
    at ^= (at >> 7 & ((1u << x.swizzle) - 1)) << 4;
    return at - SHARED_BASE;
}

static const uint16_t *eight(const matrix &x, bool rows, uint32_t r, uint32_t k)
{
    return (const uint16_t *)read_async("product", place_of_eight(x, rows, r, k), 16);
}

/* b as [DEPTH][n]. */
static void read_b(const product &p, float *to)
{
    const matrix x = matrix_of(p.b);
    for (int i = 0; i < p.n * DEPTH / 8; i++) {
        const int r = p.rows ? i / DEPTH * 8 : i / 2, k = p.rows ? i % DEPTH : i % 2 * 8;
        const uint16_t *const from = eight(x, p.rows, (uint32_t)r, (uint32_t)k);
        for (int e = 0; e < 8; e++)
            to[p.rows ? k * p.n + r + e : (k + e) * p.n + r] = p.number(from[e]);
    }
}

/* The warp's rows of a. */
static void read_a(const begun_product &b, int first, float to[16][DEPTH])
{
    if (!b.held[0]) {
        const matrix x = matrix_of(b.p.a);
        for (int r = 0; r < 16; r++)
            for (int k = 0; k < DEPTH; k += 8) {
                const uint16_t *const from = eight(x, false, (uint32_t)(first + r), (uint32_t)k);
                for (int e = 0; e < 8; e++)
                    to[r][k + e] = b.p.number(from[e]);
            }
        return;
    }
    for (int l = 0; l < LANES; l++) {
        if (memcmp(b.held[l], b.fragment[l], sizeof b.fragment[l]) != 0)
            fault("product: registers of a have been changed before the wait");
        for (int i = 0; i < 8; i++)
            to[l / 4 + i / 2 % 2 * 8][l % 4 * 2 + i / 4 * 8 + i % 2] =
                b.p.number((uint16_t)(b.fragment[l][i / 2] >> i % 2 * 16));
    }
}

static float *sum_at(sums *s, int lane, int i)
{
    return &s->x[(size_t)((lane / 4 + i / 2 % 2 * 8) * s->n + i / 4 * 8 + lane % 4 * 2 + i % 2)];
}

static void compute(begun_product *b)
{
    typedef float four __attribute__((vector_size(16))); /* columns, side by side */
    static four columns[DEPTH * MOST_COLUMNS / 4];
    const int n = b->p.n;
    float rows[16][DEPTH];
    read_a(*b, m.current->index / LANES % 4 * 16, rows);
    read_b(b->p, (float *)columns);
    for (int r = 0; r < 16; r++)
        for (int j = 0; j < n / 4; j += 2) {
            float *const to = &b->to->x[(size_t)(r * n + 4 * j)];
            four low = {0}, high = {0};
            for (int k = 0; k < DEPTH; k++) {
                low += rows[r][k] * columns[k * n / 4 + j];
                high += rows[r][k] * columns[k * n / 4 + j + 1];
            }
            for (int e = 0; e < 4; e++) {
                to[e] = b->p.add ? to[e] + low[e] : low[e];
                to[4 + e] = b->p.add ? to[4 + e] + high[e] : high[e];
            }
        }
    b->done = true;
}

/* Whether a matrix of so many rows from `first` on has any of its elements there. */
static bool is_in(const matrix &x, bool rows, int first, int n, size_t at, size_t bytes)
{
    const int each_r = rows ? 8 : 1, each_k = rows ? 1 : 8;
    const size_t last = place_of_eight(x, rows, (uint32_t)(first + n - each_r),
                                       (uint32_t)(DEPTH - each_k));
    if (at > (last | 127) || place_of_eight(x, rows, (uint32_t)first, 0) / 128 * 128 >= at + bytes)
        return false; /* as most: a swizzle leaves all within their 128 bytes */
    for (int r = first; r < first + n; r += each_r)
        for (int k = 0; k < DEPTH; k += each_k) {
            const size_t place = place_of_eight(x, rows, (uint32_t)r, (uint32_t)k);
            if (place < at + bytes && at < place + 16)
                return true;
        }
    return false;
}

static bool reads(const begun_product &b, int first, size_t at, size_t bytes)
{
    return is_in(matrix_of(b.p.b), b.p.rows, 0, b.p.n, at, bytes) ||
           (!b.held[0] && is_in(matrix_of(b.p.a), false, first, 16, at, bytes));
}

/* Also what has been computed may not be written over before the wait: it might not have been. */
bool products_read(const block *b, size_t at, size_t bytes)
{
    for (size_t n = 0; n < b->warps.size(); n++) {
        const warp_products *const w = b->warps[n].products.get();
        if (!w)
            continue;
        for (const auto &x : w->open)
            if (reads(*x, (int)(n % 4 * 16), at, bytes))
                return true;
        for (const auto &group : w->groups)
            for (const auto &x : group)
                if (reads(*x, (int)(n % 4 * 16), at, bytes))
                    return true;
    }
    return false;
}

/* ---- Groups of products --------------------------------------------------------------------- */

void products_begin()
{
    collective("wg_begin", [](void *const *) { products_of(this_warp())->begun = true; }, nullptr);
}

/* The sums that lanes' registers are; new ones take what these hold. */
static sums *sums_at(warp_products *w, void *const *operands)
{
    const product *const first = (const product *)operands[0];
    for (sums &s : w->all)
        if (s.c[0] == first->c) {
            if (s.n != first->n)
                fault("product: sums of %d columns, then of %d", s.n, first->n);
            return &s;
        }
    w->all.emplace_back();
    sums *const s = &w->all.back();
    s->n = first->n;
    s->x.resize((size_t)(16 * s->n));
    s->under_way = 0;
    for (int l = 0; l < LANES; l++) {
        s->c[l] = ((const product *)operands[l])->c;
        for (int i = 0; i < s->n / 2; i++) {
            *sum_at(s, l, i) = s->c[l][i];
            memcpy(&s->c[l][i], &POISON, sizeof POISON);
        }
    }
    return s;
}

static void say(warp_products *w, const product *p)
{
    const uint64_t words[] = {p->held ? 0 : p->a, p->b, (uint64_t)p->n, p->add, p->rows};
    for (uint64_t x : words)
        w->said = (w->said ^ x) * UINT64_C(1099511628211) + 1;
}

static void begin(void *const *operands)
{
    warp_products *const w = products_of(this_warp());
    const auto b = std::make_shared<begun_product>();
    b->p = *(const product *)operands[0];
    b->done = false;
    if (!w->begun)
        fault("product: no wg_begin() before the first of a group");
    if (b->p.n < 8 || b->p.n > MOST_COLUMNS || b->p.n % 8 != 0)
        fault("product: of %d columns", b->p.n);
    for (int l = 0; l < LANES; l++) {
        const product *const mine = (const product *)operands[l];
        if (mine->a != b->p.a || mine->b != b->p.b || mine->add != b->p.add)
            fault("product: lanes of a warp have different descriptors");
        b->held[l] = mine->held;
        if (mine->held)
            memcpy(b->fragment[l], mine->held, sizeof b->fragment[l]);
    }
    b->to = sums_at(w, operands);
    b->to->under_way++;
    say(w, &b->p);
    w->open.push_back(b);
    /* In order: at once where all before it are done. */
    for (const auto &group : w->groups)
        for (const auto &x : group)
            if (!x->done)
                return;
    for (const auto &x : w->open)
        if (x != b && !x->done)
            return;
    if (m.l->seed && draw() % 4 == 0)
        compute(b.get());
}

void product_begin(const product *p)
{
    collective("wg_multiply", begin, (void *)(uintptr_t)p);
}

void products_commit()
{
    collective("wg_commit", [](void *const *) {
        warp_products *const w = products_of(this_warp());
        w->groups.push_back(w->open);
        w->open.clear();
        w->begun = false;
    }, nullptr);
}

/* Sums whose last product is done become registers again. */
static void put_back(warp_products *w)
{
    for (auto s = w->all.begin(); s != w->all.end();) {
        if (s->under_way > 0) {
            ++s;
            continue;
        }
        for (int l = 0; l < LANES; l++)
            for (int i = 0; i < s->n / 2; i++) {
                if (memcmp(&s->c[l][i], &POISON, sizeof POISON) != 0)
                    fault("product: sums have been changed before the wait");
                s->c[l][i] = *sum_at(&*s, l, i);
            }
        s = w->all.erase(s);
    }
}

void products_wait(int but_last)
{
    collective("wg_wait", [](void *const *operands) {
        warp_products *const w = products_of(this_warp());
        while ((int)w->groups.size() > *(const int *)operands[0]) {
            for (const auto &b : w->groups.front()) {
                if (!b->done)
                    compute(b.get());
                b->to->under_way--;
            }
            w->groups.pop_front();
        }
        put_back(w);
    }, &but_last);
}

void products_thread_ends(const thread *t)
{
    const auto &products = t->home->warps[(size_t)t->index / LANES].products;
    if (products && !products->all.empty())
        fault("a thread ends before its products are done");
}

/* ---- Registers ------------------------------------------------------------------------------ */

int first_registers(int threads)
{
    const int each = REGISTERS / threads / 8 * 8;
    return each > 248 ? 248 : each;
}

void set_registers(int n, bool more)
{
    struct request {
        int n;
        bool more;
    } r = {n, more};
    collective(more ? "raise_registers" : "lower_registers", [](void *const *operands) {
        const request *const x = (const request *)operands[0];
        warp *const w = this_warp();
        if (x->n < 24 || x->n > 256 || x->n % 8 != 0)
            fault("%d registers", x->n);
        if (x->more ? x->n < w->registers : x->n > w->registers)
            fault("%s to %d registers, from %d", x->more ? "raised" : "lowered", x->n,
                  w->registers);
        block *const b = m.current->home;
        if (x->more)
            return;
        b->registers += (w->registers - x->n) * LANES;
        w->registers = x->n;
        for (thread *t : b->short_of_registers)
            wake(t);
        b->short_of_registers.clear();
    }, &r);
    warp *const w = this_warp();
    block *const b = m.current->home;
    while (w->registers != n) {
        const int lacking = (n - w->registers) * LANES;
        if (b->registers >= lacking) {
            b->registers -= lacking;
            w->registers = n;
        } else {
            b->short_of_registers.push_back(m.current);
            wait("registers that others give back");
        }
    }
}

int elected_lane() { return m.l->seed ? (int)(m.l->seed * 7 % LANES) : 0; }

/* ---- Warpgroups ----------------------------------------------------------------------------- */

void products_block_ends(const block *b)
{
    for (size_t n = 0; n < b->warps.size(); n++) {
        const warp &first = b->warps[n / 4 * 4], &w = b->warps[n];
        if (first.registers != w.registers)
            fault("warps of a warpgroup with %d and %d registers", first.registers, w.registers);
        if ((first.products ? first.products->said : 0) != (w.products ? w.products->said : 0))
            fault("warps of a warpgroup have computed different products");
    }
}

} // namespace emulator
