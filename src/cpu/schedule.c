/* SPDX-License-Identifier: BSD-3-Clause */
#include "cpu/schedule.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "cpu/isa.h"
#include "cpu/team.h"
#include "parallel.h"

/* Bytes of state of the heads that a decode item walks through together: to read memory in order is
 * worth more than to stay in the first cache, but only the second is wide enough for the rest. */
static const int64_t DECODE_STATE = 65536;

/* A unit in work. */
struct slot {
    const struct job *job;
    struct attn_parts tiles;
    char *partial;
    bool decode;
    int64_t chunks, ranges, heads; /* decode: chunks of keys, ranges of heads, heads in a range */
    int64_t cuts;                  /* and items of a chunk: ranges of heads for pieces of rows */
    int64_t blocks, together; /* else: blocks of rows in an item, and of how many heads each */
    int64_t wide;             /* and blocks of more rows, which come first */
    struct attn_unit unit;
};

struct job {
    const struct attn_schedule *s;
    const struct attn_problem *p;
    const struct attn_cpu_kernel *kernel;
    enum attn_asks asks;
    bool near;
    const int64_t *order; /* sequences by falling work */
    struct slot *slots;
    char *scratch, *weights;
};

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t pieces(int64_t n, int64_t of) { return n <= of ? n > 0 : (n + of - 1) / of; }

/* Columns of the probabilities are made in a second round, from tiles with room for all keys: from
 * the very scores that the tiled form has. */
static bool wants_columns(const struct attn_problem *p)
{
    return p->key_sums.data || p->probs_fn;
}

/* Rows of sequence b and one of its heads of keys that see a key. */
static int64_t rows_of(const struct attn_problem *p, int64_t b)
{
    const struct attn_range seeing = attn_seeing_rows(p, b);
    return (seeing.hi - seeing.lo) * p->group;
}

static bool is_decode(const struct attn_problem *p, const struct attn_cpu_kernel *kernel,
                      int64_t b, int64_t rows)
{
    return !wants_columns(p) && kernel->decode->takes(p, b, rows);
}

/* Rows are cut into parts where there are fewer heads than threads and keys are few, no more than a
 * chunk: each thread packs them for itself then. What one thread writes and another reads is not
 * written again before the other has given it up, line by line, which takes longer than to make it
 * twice. */
enum { ROWS_OF_PARTS = 4 /* of the decode form, at least: a step's */ };

/* Those that are part n, of rows cut into pieces of `step`; the last one has what is left. */
static struct attn_range part_of(struct attn_range rows, int64_t step, int32_t n, int32_t parts)
{
    const struct attn_range share = attn_share(pieces(rows.hi - rows.lo, step), n, parts);
    return (struct attn_range){min64(rows.lo + share.lo * step, rows.hi),
                               min64(rows.lo + share.hi * step, rows.hi)};
}

/* How the units of a sequence in the tiled form are cut. */
struct cut {
    int64_t wide;   /* blocks of more rows, before the others, where several items share a unit */
    int64_t rest;   /* rows that are left to the decode form */
    int64_t blocks; /* of the others, in an item */
    int64_t heads;  /* of which it has those */
    int64_t places; /* for tiles */
    bool joins;     /* the rest is computed in the item of the blocks, tile by tile */
};

/* Whether packed keys and values of a head of sequence b are more than had better be kept. */
static bool are_far(const struct attn_problem *p, const struct attn_cpu_kernel *kernel, int64_t b)
{
    const int64_t near = 1 << 19, room = ATTN_TILE_KEYS; /* bytes, keys */
    return attn_axis_len(&p->key, b) / room >
           near / kernel->tile_bytes(p->head_dim, p->head_dim_v, room);
}

/* Whether the state of so many blocks of rows stays in the second cache beside a tile. */
static bool stay_near(const struct attn_problem *p, const struct attn_cpu_kernel *kernel,
                      int64_t blocks)
{
    const int64_t state = 1 << 19; /* bytes */
    return blocks <= ATTN_MOST_BLOCKS &&
           kernel->scratch_bytes(p->head_dim, p->head_dim_v, ATTN_TILE_KEYS, blocks) <= state;
}

/* How many of a unit's blocks an item takes: one where tiles are near. Where they are far all, if
 * that is fair: tiles are packed for it alone then, one after the other in one place. Otherwise
 * several items share what is packed, and all of it is kept: two, so that it comes from afar half
 * as often, if items are so many that none keeps the others waiting. */
static int64_t blocks_of(const struct attn_schedule *s, const struct attn_problem *p,
                         const struct attn_cpu_kernel *kernel, int64_t blocks, int64_t b)
{
    const double pairs = attn_pairs_of(p, b), enough = 5; /* shares, of which threads have 3 */
    if (blocks < 2 || !are_far(p, kernel, b))
        return 1;
    if (pairs <= s->fair && stay_near(p, kernel, blocks))
        return blocks;
    return 2 * pairs * enough <= s->share * (double)blocks && stay_near(p, kernel, 2) ? 2 : 1;
}

/* Heads whose blocks an item takes together, tile by tile: where those of a token lie side by side
 * in more pages than processors remember, so that each is looked up once and not once for each
 * head. They keep their state in the second cache, and give all threads as much to do. */
static int64_t heads_together(const struct attn_schedule *s, const struct attn_problem *p,
                              const struct attn_cpu_kernel *kernel, int64_t blocks, int64_t b)
{
    const int64_t state = 1 << 19, room = ATTN_TILE_KEYS; /* bytes, keys */
    const double pages = 3 << 22;                         /* bytes */
    const int64_t size = (int64_t)attn_dtype_size(p->dtype);
    const double keys = (double)attn_axis_len(&p->key, b) * (double)p->heads_kv *
                        (double)(p->head_dim + p->head_dim_v) * (double)size;
    if (s->parts > 1 || s->share == 0 || size < 4 || keys <= pages || p->k.head >= p->k.token ||
        wants_columns(p))
        return 1;
    const int64_t none = kernel->scratch_bytes(p->head_dim, p->head_dim_v, room, 0);
    const int64_t one = kernel->scratch_bytes(p->head_dim, p->head_dim_v, room, blocks) - none;
    const int64_t most = state / one;
    const double pairs = attn_pairs_of(p, b);
    for (int64_t n = most < 1 ? p->heads_kv : pieces(p->heads_kv, most); n < p->heads_kv; n++) {
        const int64_t heads = pieces(p->heads_kv, n);
        const bool even = p->heads_kv % n == 0 && p->batch * n % s->threads == 0;
        if ((double)heads * pairs <= s->share || (s->alike && even))
            return heads;
    }
    return 1;
}

/* Whether what a block computes for rows that do not see it, along a causal edge or where a block
 * of the block mask ends, is little even if there are `more` rows in it, `rows` in all. Where masks
 * that each query has for itself begin and end is not known. */
static bool has_few_edges(const struct attn_problem *p, int64_t b, int64_t more, int64_t rows)
{
    const int64_t nq = attn_axis_len(&p->query, b), nk = attn_axis_len(&p->key, b), enough = 16;
    const int64_t alike = p->block_mask.data ? min64(p->block_q, nq) * p->group : rows;
    if ((alike % rows != 0 && alike < 5 * rows) || p->query_docs.data ||
        (p->mask.data && p->mask.query != 0))
        return false;
    const struct attn_band band = attn_band_at(p, b);
    const struct attn_range see = attn_band_row(band, nq / 2);
    return attn_band_whole(band, 0, nq, 0, nk) || (see.hi - see.lo) * p->group >= enough * more;
}

/* How many blocks of a unit of so many rows, which several items share, have more of them, if items
 * are so many, 8 for each thread, that none keeps the others waiting. What is left fills one or two
 * of the smaller ones, if that is less than another of these. Results do not tell. */
static int64_t wide_of(const struct attn_schedule *s, const struct attn_problem *p,
                       const struct attn_cpu_kernel *kernel, int64_t b, int64_t rows)
{
    if (!s->wide || s->parts > 1)
        return 0;
    const int64_t blocks = rows / s->wide->block_rows, left = rows % s->wide->block_rows;
    if (attn_pairs_of(p, b) * 8 > 3 * s->share * (double)(blocks + (left > 0)) ||
        !has_few_edges(p, b, s->wide->block_rows - kernel->block_rows, s->wide->block_rows))
        return 0;
    if (left > kernel->block_rows)
        return blocks + 1;
    return left > 0 && left <= kernel->block_rows / 2 && blocks > 0 ? blocks - 1 : blocks;
}

static struct cut cut_of(const struct attn_schedule *s, const struct attn_problem *p,
                         const struct attn_cpu_kernel *kernel, int64_t b, int64_t rows)
{
    const int64_t nk = attn_axis_len(&p->key, b);
    struct cut c;
    c.rest = wants_columns(p) ? 0 : kernel->decode->rest_rows(p, rows, nk);
    const int64_t blocks = pieces(pieces(rows - c.rest, kernel->block_rows), s->parts);
    c.blocks = blocks_of(s, p, kernel, blocks, b);
    const bool shared = c.blocks < blocks; /* by several items, which all find what is packed */
    c.places = shared ? pieces(nk, ATTN_TILE_KEYS) : 1;
    c.heads = shared ? 1 : heads_together(s, p, kernel, c.blocks, b);
    const bool alone = s->parts == 1 && are_far(p, kernel, b) && attn_pairs_of(p, b) <= s->fair;
    c.joins = c.rest > 0 && !shared && (c.heads > 1 || alone);
    c.wide = shared ? wide_of(s, p, kernel, b, rows - c.rest) : 0;
    return c;
}

/* Heads that one decode item takes: as many as keep their state in the cache, but few enough that
 * all threads have something to do. cuts: of a sequence into items of all its heads. */
static int64_t heads_of(const struct attn_problem *p, const struct attn_cpu_decode *decode,
                        int64_t rows, int64_t cuts, int32_t threads)
{
    if (p->heads_kv == 1)
        return 1;
    const int64_t one = decode->scratch_bytes(p, rows, 1);
    const int64_t items = cuts * p->batch, enough = 3 * (int64_t)threads;
    const int64_t ranges = threads == 1 || items >= enough ? 1 : (enough + items - 1) / items;
    int64_t heads = (p->heads_kv + ranges - 1) / ranges;
    if (heads > DECODE_STATE / one)
        heads = DECODE_STATE / one;
    return heads < 1 ? 1 : heads;
}

/* What the sequences need: tiles, partial results, scratch. */
static bool survey(struct attn_schedule *s, const struct attn_problem *p,
                   const struct attn_cpu_kernel *kernel)
{
    int64_t rows = 0, rest = 0, joining = 0, blocks = 1, wide = 0, longest = 0;
    s->partial = 0;
    s->tiled = s->decoded = s->places = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t nk = attn_axis_len(&p->key, b), own = rows_of(p, b);
        if (own == 0)
            continue;
        if (is_decode(p, kernel, b, own)) {
            size_t partial = 0;
            const int64_t chunks = attn_chunks(p, nk);
            s->decoded++;
            rows = max64(rows, own);
            if (chunks > 1 && !attn_room_add(&partial, (size_t)chunks,
                                             (size_t)kernel->decode->partial_bytes(p, own)))
                return false;
            s->partial = partial > s->partial ? partial : s->partial;
        } else {
            const struct cut cut = cut_of(s, p, kernel, b, own);
            s->tiled++;
            s->places = max64(s->places, cut.places);
            rest = max64(rest, cut.rest);
            if (cut.joins)
                joining = max64(joining, cut.heads *
                                             kernel->decode->scratch_bytes(p, cut.rest, 1));
            blocks = max64(blocks, cut.blocks * cut.heads);
            wide = max64(wide, min64(cut.wide, cut.blocks));
            longest = max64(longest, nk);
        }
    }
    s->tiles = pieces(longest, ATTN_TILE_KEYS);
    s->room = longest < ATTN_TILE_KEYS && !wants_columns(p) ? (longest + 7) / 8 * 8
                                                            : ATTN_TILE_KEYS;
    int64_t scratch = 0;
    if (s->tiled > 0)
        scratch = kernel->scratch_bytes(p->head_dim, p->head_dim_v, s->room, blocks) + joining;
    if (wide > 0)
        scratch = max64(scratch, s->wide->scratch_bytes(p->head_dim, p->head_dim_v, s->room, wide));
    if (rest > 0)
        scratch = max64(scratch, kernel->decode->scratch_bytes(p, rest, 1));
    if (s->decoded > 0) {
        const int64_t one = kernel->decode->scratch_bytes(p, rows, 1);
        const int64_t all =
            p->heads_kv == 1 ? one : kernel->decode->scratch_bytes(p, rows, p->heads_kv);
        scratch = max64(scratch, all < one + DECODE_STATE ? all : one + DECODE_STATE);
    }
    s->scratch = (size_t)scratch;
    return true;
}

/* Of a sequence and head in the decode form: its chunks, or parts of its rows. */
static double decode_items(const struct attn_problem *p, int64_t rows, int64_t nk)
{
    const int64_t chunks = attn_chunks(p, nk);
    if (chunks > 1 || (rows > 0 && rows <= ROWS_OF_PARTS))
        return (double)chunks;
    return (double)rows / ROWS_OF_PARTS;
}

/* Items that a call can be cut into, in the one of its rounds that has more; the last rows of a
 * sequence may be less than one. */
static double items_of(const struct attn_problem *p, const struct attn_cpu_kernel *kernel)
{
    double items = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t nk = attn_axis_len(&p->key, b), rows = rows_of(p, b);
        const double blocks = (double)rows / kernel->block_rows;
        const double tiles = wants_columns(p) ? (double)pieces(nk, ATTN_TILE_KEYS) : 0;
        if (is_decode(p, kernel, b, rows))
            items += decode_items(p, rows, nk);
        else
            items += blocks > tiles ? blocks : tiles;
    }
    return items * (double)p->heads_kv;
}

/* Nanoseconds of one thread, roughly. */
static double work_of(const struct attn_problem *p, const struct attn_cpu_kernel *kernel)
{
    double work = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const bool matrices = kernel->matrices && !is_decode(p, kernel, b, rows_of(p, b));
        work += attn_team_work_of(p, b, kernel->block_rows, matrices);
    }
    return work;
}

/* Out of those allowed. */
static int32_t threads_of(const struct attn_problem *p, const struct attn_cpu_kernel *kernel,
                          int32_t allowed)
{
    if (allowed == 1)
        return 1;
    const double work = work_of(p, kernel);
    const int32_t worth = attn_team_threads(work, allowed);
    return worth == 1 ? 1 : attn_team_for(work, items_of(p, kernel), worth);
}

/* How much one item may have without keeping the others waiting: a whole unit where all are alike
 * and each thread has as many. */
static void be_fair(struct attn_schedule *s, const struct attn_problem *p)
{
    double pairs = 0, most = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const double own = attn_pairs_of(p, b);
        pairs += own;
        most = own > most ? own : most;
    }
    s->alike = most * (double)p->batch == pairs;
    s->share = s->threads == 1 ? pairs * (double)p->heads_kv
                               : pairs * (double)p->heads_kv / (3 * (double)s->threads);
    s->fair = s->threads == 1 ? pairs : s->share;
    if (s->threads > 1 && s->alike && p->batch * p->heads_kv % s->threads == 0)
        s->fair = most;
}

/* Few keys and values are in the second cache when they have been used before, more of them in the
 * third if the call before had the same, and so near that to ask for them takes longer than to
 * wait: the more, the fewer rows there are to read them again, less if it is slow. A third cache
 * that several cores share has 16 MB and more. */
static const double NEAR_KEYS = 1 << 22; /* bytes of those of the call before, for several rows */

static double near_bytes(const struct attn_problem *p, int32_t threads, bool same_keys)
{
    if (!same_keys)
        return 1 << 20;
    const int64_t rows = p->query.max * p->group, size = attn_dtype_size(p->dtype);
    if (!attn_isa_third_is_slow())
        return rows >= 4 ? NEAR_KEYS : 1 << 24;
    if (size < 4 || rows > 4 + size)
        return NEAR_KEYS;
    if (threads == 1)
        return rows == 1 ? 3 << 21 : 11 << 19;
    return rows == 1 ? 5 << 21 : 3 << 21; /* several wait at a time */
}

static enum attn_asks asks_of(const struct attn_problem *p, int32_t threads, bool same_keys)
{
    return attn_key_bytes(p) <= near_bytes(p, threads, same_keys) ? ATTN_ASKS_NOTHING
                                                                  : attn_isa_asks();
}

/* The second round's part of the workspace. */
static bool plan_columns(struct attn_schedule *s, const struct attn_problem *p,
                         const struct attn_cpu_kernel *kernel)
{
    s->weights = s->columns = 0;
    if (!wants_columns(p))
        return true;
    s->columns = s->tile + (size_t)kernel->columns_bytes(p, s->room);
    size_t rows;
    return !__builtin_mul_overflow((size_t)p->query.rows, (size_t)p->heads_q, &rows) &&
           attn_room_add(&s->weights, rows, (size_t)kernel->weight_bytes);
}

/* How many units are in work at a time, and what each takes. */
static bool plan_slots(struct attn_schedule *s, const struct attn_problem *p,
                       const struct attn_cpu_kernel *kernel, int64_t units)
{
    s->packed = 0;
    if (!survey(s, p, kernel))
        return false;
    const bool tiles = s->tiled > 0 || wants_columns(p);
    s->tile = tiles ? (size_t)kernel->tile_bytes(p->head_dim, p->head_dim_v, s->room) : 0;
    if (!attn_room_add(&s->packed, (size_t)s->places, s->tile))
        return false;
    s->slots = attn_team_slots(units, s->threads, s->packed + s->partial);
    return true;
}

bool attn_schedule_plan(struct attn_schedule *s, const struct attn_problem *p,
                        const struct attn_cpu_kernel *kernel, const struct attn_cpu_kernel *wide,
                        int32_t threads)
{
    int64_t units;
    if (p->head_dim > ATTN_MOST_DIM || p->head_dim_v > ATTN_MOST_DIM || p->heads_kv > INT32_MAX ||
        __builtin_mul_overflow(p->batch, p->heads_kv, &units))
        return false;
    s->wide = wide;
    s->threads = threads_of(p, kernel, threads);
    const bool parts = s->threads > units && units > 0 && attn_chunks(p, p->key.max) == 1;
    s->parts = parts ? (int32_t)pieces(s->threads, units) : 1;
    units *= s->parts;
    be_fair(s, p);
    if (!plan_slots(s, p, kernel, units))
        return false;
    if (s->slots < s->threads && s->slots < units) { /* threads without one help by blocks */
        s->fair = s->share = 0;
        if (!plan_slots(s, p, kernel, units))
            return false;
    }
    if (!plan_columns(s, p, kernel))
        return false;

    s->bytes = 0;
    return attn_room_add(&s->bytes, 1, attn_order_bytes(p->batch)) &&
           attn_room_add(&s->bytes, 1, attn_team_bytes(s->slots)) &&
           attn_room_add(&s->bytes, (size_t)s->slots, sizeof(struct slot)) &&
           attn_room_add(&s->bytes, 2 * (size_t)s->slots, attn_room_of((size_t)s->tiles)) &&
           attn_room_add(&s->bytes, (size_t)s->threads, s->scratch) &&
           attn_room_add(&s->bytes, (size_t)s->slots, s->packed) &&
           attn_room_add(&s->bytes, (size_t)s->slots, s->partial) &&
           attn_room_add(&s->bytes, 1, s->weights) &&
           attn_room_add(&s->bytes, (size_t)s->threads, s->columns);
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

static void pack_tile(void *arg, int64_t t)
{
    struct slot *slot = arg;
    struct attn_unit *u = &slot->unit;
    u->tile_info[t] =
        slot->job->kernel->pack(u, t, u->packed + (size_t)(t % u->places) * slot->job->s->tile);
}

static bool need_tile(void *arg, int64_t t)
{
    const struct slot *slot = arg;
    return attn_parts_need(&slot->tiles, t);
}

/* ---- Units ----------------------------------------------------------------------------------- */

/* The last items are taken first, and so those of the first chunk are the last ones: the last
 * chunk may be short, and what comes at the end had better be. */
static void do_chunk(const struct job *job, struct slot *slot, int64_t item, void *scratch)
{
    const struct attn_cpu_decode *decode = job->kernel->decode;
    const struct attn_unit *u = &slot->unit;
    const int64_t later = attn_quotient(item, slot->cuts), cut = item - later * slot->cuts;
    const int64_t piece = attn_quotient(cut, slot->ranges);
    const int64_t first = (cut - piece * slot->ranges) * slot->heads;
    const int64_t row0 = u->rows.lo + piece * decode->item_rows;
    const struct attn_range rows = {row0, min64(row0 + decode->item_rows, u->rows.hi)};
    decode->chunk(u, rows, slot->chunks - 1 - later, first,
                  min64(slot->heads, job->p->heads_kv - first), scratch,
                  slot->chunks > 1 ? slot->partial : NULL);
}

/* Items of blocks that have more rows, and the rows of these. */
static int64_t wide_items(const struct slot *slot) { return pieces(slot->wide, slot->blocks); }

static int64_t wide_rows(const struct job *job, const struct slot *slot)
{
    return slot->wide > 0 ? slot->wide * job->s->wide->block_rows : 0;
}

/* The last rows come first: under a causal mask they are the longest. */
static void do_rows(const struct job *job, struct slot *slot, int64_t item, void *scratch)
{
    const struct attn_unit *u = &slot->unit;
    const int64_t heads = min64(slot->together, job->p->heads_kv - u->head_kv);
    const bool wide = item < wide_items(slot);
    const struct attn_cpu_kernel *kernel = wide ? job->s->wide : job->kernel;
    const int64_t first = wide ? item * slot->blocks : (item - wide_items(slot)) * slot->blocks;
    const int64_t row0 =
        u->rows.lo + (wide ? 0 : wide_rows(job, slot)) + first * kernel->block_rows;
    const int64_t left = attn_unit_tiled(u).hi - row0;
    const int64_t all = wide ? slot->wide - first : pieces(left, kernel->block_rows);
    if (left <= 0)
        kernel->decode->rest(u, (struct attn_range){0, u->nk}, scratch);
    else
        kernel->rows(u, heads, row0, min64(slot->blocks, all), scratch, need_tile, slot);
}

static void do_item(void *arg, int32_t n, int64_t item, int32_t thread)
{
    const struct job *job = arg;
    struct slot *slot = &job->slots[n];
    void *scratch = job->scratch + (size_t)thread * job->s->scratch;
    if (slot->decode)
        do_chunk(job, slot, item, scratch);
    else
        do_rows(job, slot, item, scratch);
}

static void close_unit(void *arg, int32_t n, int32_t thread)
{
    const struct job *job = arg;
    struct slot *slot = &job->slots[n];
    if (slot->decode && slot->chunks > 1)
        job->kernel->decode->merge(&slot->unit, slot->chunks,
                                   job->scratch + (size_t)thread * job->s->scratch, slot->partial);
}

/* Rows of the unit's head that see no key. */
static void write_unseeing(const struct job *job, const struct attn_unit *u)
{
    const struct attn_range before = {0, u->seeing.lo}, behind = {u->seeing.hi, u->nq};
    job->kernel->unseeing(u, before);
    job->kernel->unseeing(u, behind);
}

/* Part n of the rows of a unit in the decode form; returns its items. */
static int64_t open_decode(const struct job *job, struct slot *slot, int32_t n)
{
    const struct attn_problem *p = job->p;
    struct attn_unit *u = &slot->unit;
    const int64_t rows = u->rows.hi - u->rows.lo;
    u->rows = part_of(u->rows, ROWS_OF_PARTS, n, job->s->parts);
    const int64_t some = pieces(u->rows.hi - u->rows.lo, job->kernel->decode->item_rows);
    if (some == 0)
        return 0;
    slot->chunks = attn_chunks(p, u->nk);
    slot->heads = heads_of(p, job->kernel->decode, rows, slot->chunks * some * job->s->parts,
                           job->s->threads);
    slot->ranges = pieces(p->heads_kv, slot->heads);
    slot->cuts = slot->ranges * some;
    return slot->chunks * slot->cuts;
}

/* The same of one in the tiled form. */
static int64_t open_tiled(const struct job *job, struct slot *slot, int32_t n)
{
    struct attn_unit *u = &slot->unit;
    const int64_t step = job->kernel->block_rows;
    const struct cut cut = cut_of(job->s, job->p, job->kernel, u->b, u->rows.hi - u->rows.lo);
    const struct attn_range blocks = {u->rows.lo, u->rows.hi - cut.rest};
    const bool last = n == job->s->parts - 1;
    if (u->head_kv % cut.heads != 0)
        return 0; /* an item of another one has it */
    slot->together = cut.heads;
    u->rows = part_of(blocks, step, n, job->s->parts);
    slot->wide = cut.wide;
    const int64_t own = pieces(max64(u->rows.hi - u->rows.lo - wide_rows(job, slot), 0), step);
    u->rest = last ? cut.rest : 0;
    u->rows.hi += u->rest;
    u->joins = cut.joins;
    u->places = cut.places;
    slot->blocks = cut.wide > 0 ? cut.blocks : min64(cut.blocks, max64(own, 1));
    slot->tiles.count = pieces(u->nk, ATTN_TILE_KEYS);
    attn_parts_begin(&slot->tiles);
    return wide_items(slot) + pieces(own, slot->blocks) + (u->rest > 0 && !u->joins);
}

static int64_t open_unit(void *arg, int32_t at, int64_t n)
{
    const struct job *job = arg;
    const struct attn_problem *p = job->p;
    struct slot *slot = &job->slots[at];
    struct attn_unit *u = &slot->unit;
    const int64_t whole = attn_quotient(n, job->s->parts);
    const int64_t b = attn_quotient(whole, p->heads_kv);
    const int64_t head_kv = whole - b * p->heads_kv;
    const int32_t part = (int32_t)(n - whole * job->s->parts);
    attn_unit_describe(u, p, job->order[b], head_kv);
    u->room = job->s->room;
    u->weights = job->weights;
    u->asks = job->asks;
    u->slow_third = attn_isa_third_is_slow();
    u->near = job->near && u->rows.hi - u->rows.lo <= 4 * job->kernel->block_rows;
    slot->decode = is_decode(p, job->kernel, u->b, u->rows.hi - u->rows.lo);
    if (part == 0 && (u->seeing.lo > 0 || u->seeing.hi < u->nq))
        write_unseeing(job, u);
    if (u->rows.lo == u->rows.hi || (slot->decode && head_kv > 0))
        return 0; /* where there are few rows, the first head's unit has all heads */
    return slot->decode ? open_decode(job, slot, part) : open_tiled(job, slot, part);
}

/* ---- Setting up ------------------------------------------------------------------------------ */

/* Whether each thread had better do its whole share itself: all have as much, and a unit takes less
 * than what is packed for it takes to come from another's cache, several times over. Few rows have
 * all their items in one unit. */
static bool keeps_shares(const struct attn_schedule *s, const struct attn_problem *p,
                         const struct attn_cpu_kernel *kernel, int64_t units)
{
    const double most = 1e5; /* nanoseconds */
    return s->threads > 1 && s->alike && s->decoded == 0 && s->slots == s->threads &&
           units % s->threads == 0 && attn_dtype_size(p->dtype) < 4 &&
           work_of(p, kernel) < most * (double)units;
}

void attn_schedule_run(const struct attn_schedule *s, const struct attn_problem *p,
                       const struct attn_cpu_kernel *kernel, bool same_keys, void *workspace)
{
    static const struct attn_team_work work = {open_unit, do_item, close_unit};
    char *at = workspace;
    struct job job = {
        .s = s, .p = p, .kernel = kernel, .asks = asks_of(p, s->threads, same_keys)};
    job.near = same_keys && attn_dtype_size(p->dtype) >= 4 && attn_key_bytes(p) <= NEAR_KEYS;
    job.order = attn_order_sequences(p, attn_room_take(&at, 1, attn_order_bytes(p->batch)));
    void *const team = attn_room_take(&at, 1, attn_team_bytes(s->slots));
    job.slots = attn_room_take(&at, (size_t)s->slots, sizeof *job.slots);
    for (int32_t i = 0; i < s->slots; i++) {
        struct slot *slot = &job.slots[i];
        slot->job = &job;
        slot->tiles.make = pack_tile;
        slot->tiles.arg = slot;
        slot->tiles.state = attn_room_take(&at, 1, (size_t)s->tiles);
        slot->unit.tile_info = attn_room_take(&at, 1, (size_t)s->tiles);
        slot->unit.packed = attn_room_take(&at, 1, s->packed);
        slot->partial = attn_room_take(&at, 1, s->partial);
    }
    job.scratch = attn_room_take(&at, (size_t)s->threads, s->scratch);
    char *const weights = attn_room_take(&at, 1, s->weights);
    job.weights = s->weights > 0 ? weights : NULL;
    const int64_t units = p->batch * p->heads_kv * s->parts;
    attn_team_run(s->threads, s->slots, units, &work, keeps_shares(s, p, kernel, units), &job,
                  team);
    if (s->weights > 0)
        attn_columns_run(s, p, kernel, weights, at);
}
