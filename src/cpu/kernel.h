/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Between the schedule, which knows threads and sequences, and the kernels, which know vectors.
 *
 * A unit is one key/value head of one sequence with the query heads that share it, or a part of its
 * rows. Its keys and values are packed once, tile by tile, into a layout of the kernel's own. Its
 * rows are (query, head of the group) pairs, row r being query r / group and head r % group, those
 * that the band lets see a key, cut into blocks. A block of rows against the keys it sees is one
 * item of work, or all blocks together are, and so are a few rows past the last one; any thread may
 * do any item.
 */
#ifndef ATTN_CPU_KERNEL_H
#define ATTN_CPU_KERNEL_H

#include <stdint.h>

#include "problem.h"
#include "score.h"

/* n / by: a division takes as long as much else of a tiny call, in which it is mostly by one. */
static inline int64_t attn_quotient(int64_t n, int64_t by) { return by == 1 ? n : n / by; }

/* Keys in a tile of the tiled form, and in a chunk of the decode form, where more of small heads.
 * Results depend on both. */
enum { ATTN_TILE_KEYS = 192, ATTN_CHUNK_KEYS = 512 };
enum { ATTN_SMALL_CHUNK_KEYS = 2048, ATTN_SMALL_HEADS = 16 };

enum { ATTN_MOST_BLOCKS = 8 }; /* of rows, in an item */

/* Head sizes up to which no size of a tile or block overflows. */
static const int64_t ATTN_MOST_DIM = 1 << 24;

/* To which cache keys and values are asked for that are far from it; nothing, where they are few.
 * In order: the processor reads ahead along what lies side by side, and the decode form sees to it
 * that it can. */
enum attn_asks { ATTN_ASKS_NOTHING, ATTN_ASKS_FIRST, ATTN_ASKS_SECOND, ATTN_ASKS_IN_ORDER };

struct attn_unit {
    const struct attn_problem *p;
    struct attn_sequence seq;
    int64_t b, head_kv;
    int64_t nq, nk;
    struct attn_range seeing; /* the sequence's queries that the band lets see a key */
    struct attn_range rows;   /* those of the unit, of these queries */
    int64_t rest; /* rows at its end that are in no block but in the decode form */
    bool joins;   /* which is computed beside the blocks then, tile by tile */
    const uint8_t *key_mask; /* of this sequence, nk bytes; null: every key is attended */
    char *weights;           /* per query token and query head how a score becomes a probability,
                                for later; null: not wanted. See struct weight in tmpl.h */
    int64_t room;            /* keys that there is room for in a tile: ATTN_TILE_KEYS, or fewer
                                where all sequences are shorter; a multiple of 8 */
    char *packed;            /* tiles, each tile_bytes() long, tile t in place t % places */
    int64_t places;          /* one if a single item takes all blocks, else one for each tile */
    uint8_t *tile_info;      /* ATTN_TILE_ bits of each tile */
    enum attn_asks asks;     /* decode: whether memory is asked for ahead */
    bool near;               /* few rows beside keys and values that are in a cache, as the call
                                before had them, too: nothing is asked for, the rows neither */
    bool slow_third;         /* the third cache is: keys apart had better not come from it */
};

/* Sequence b and key/value head of a unit, and what follows from them. */
static inline void attn_unit_describe(struct attn_unit *u, const struct attn_problem *p, int64_t b,
                                      int64_t head_kv)
{
    u->p = p;
    u->seq = attn_sequence_of(p, b);
    u->b = b;
    u->head_kv = head_kv;
    u->nq = u->seq.nq;
    u->nk = u->seq.nk;
    u->rest = 0;
    u->joins = u->near = u->slow_third = false;
    u->places = 1;
    u->seeing = attn_band_rows(u->seq.band, u->nq);
    u->rows = (struct attn_range){u->seeing.lo * p->group, u->seeing.hi * p->group};
    u->key_mask = u->seq.key_mask;
}

/* Bytes of all keys and values of a call. */
static inline double attn_key_bytes(const struct attn_problem *p)
{
    const struct attn_axis *a = &p->key;
    const double keys = a->cu ? (double)a->rows : (double)p->batch * (double)a->max;
    return keys * (double)p->heads_kv * (double)(p->head_dim + p->head_dim_v) *
           (double)attn_dtype_size(p->dtype);
}

/* The chunks of nk keys: all alike, but for the last one, which takes what is less than a quarter
 * of another. */
static inline int64_t attn_chunk_keys(const struct attn_problem *p)
{
    return p->head_dim <= ATTN_SMALL_HEADS && p->head_dim_v <= ATTN_SMALL_HEADS
               ? ATTN_SMALL_CHUNK_KEYS
               : ATTN_CHUNK_KEYS;
}

static inline int64_t attn_chunks(const struct attn_problem *p, int64_t nk)
{
    const int64_t keys = attn_chunk_keys(p);
    return nk <= keys + keys / 4 ? 1 : (nk - keys / 4 + keys - 1) / keys;
}

static inline struct attn_range attn_chunk(const struct attn_problem *p, int64_t nk, int64_t n)
{
    const int64_t keys = attn_chunk_keys(p);
    return (struct attn_range){n * keys, n + 1 < attn_chunks(p, nk) ? (n + 1) * keys : nk};
}

/* Rows of a unit that are in blocks. */
static inline struct attn_range attn_unit_tiled(const struct attn_unit *u)
{
    return (struct attn_range){u->rows.lo, u->rows.hi - u->rest};
}

/* What packing found out about a tile. */
enum {
    ATTN_TILE_HIDES = 1,    /* the key mask hides some of its keys */
    ATTN_TILE_HIDDEN = 2,   /* it hides all of them */
    ATTN_TILE_NONFINITE = 4, /* a value that the mask does not hide is NaN or infinite */
    ATTN_TILE_DIRECT = 8    /* it is not packed: keys and values are used where they lie */
};

/* The decode form. Its unit is a sequence with all its heads (head_kv and what is said of tiles are
 * not used), its items are chunks of keys for ranges of heads and of rows. It also takes the last
 * rows of a unit of the tiled form where they would fill little of a block. */
struct attn_cpu_decode {
    int64_t item_rows; /* of an item, at most */
    /* Whether sequence b, of so many rows to a key/value head that see a key, takes this form. */
    bool (*takes)(const struct attn_problem *p, int64_t b, int64_t rows);
    /* Bytes of the scratch memory of a thread for a range of so many heads, and of the partial
     * results of one chunk; rows: those of a head that see a key. */
    int64_t (*scratch_bytes)(const struct attn_problem *p, int64_t rows, int64_t heads);
    int64_t (*partial_bytes)(const struct attn_problem *p, int64_t rows);
    /* Chunk n for some of the unit's rows, of heads head0 .. head0 + heads - 1: to `partial`, then
     * for all rows, or, if that is null because it is the only chunk, to out and lse. */
    void (*chunk)(const struct attn_unit *u, struct attn_range rows, int64_t n, int64_t head0,
                  int64_t heads, void *scratch, char *partial);
    /* Adds up the partial results of all chunks to out and lse. */
    void (*merge)(const struct attn_unit *u, int64_t chunks, void *scratch, char *partial);
    /* Of a unit of so many rows in the tiled form, how many at its end are better here. */
    int64_t (*rest_rows)(const struct attn_problem *p, int64_t rows, int64_t nk);
    /* Those, u->rest of them, against some keys, which go on where those of the call before ended:
     * with those from 0 on sums begin, and with the last ones results go to out and lse. */
    void (*rest)(const struct attn_unit *u, struct attn_range keys, void *scratch);
};

struct attn_cpu_kernel {
    const struct attn_cpu_decode *decode;
    int32_t block_rows;
    bool matrices; /* whose products are those of matrices */
    /* Bytes of a packed tile, and of the scratch memory of a thread for so many blocks; multiples
     * of 64. */
    int64_t (*tile_bytes)(int64_t head_dim, int64_t head_dim_v, int64_t room);
    int64_t (*scratch_bytes)(int64_t head_dim, int64_t head_dim_v, int64_t room, int64_t blocks);
    /* Packs tile t of the unit to `to` and returns its info. */
    uint8_t (*pack)(const struct attn_unit *u, int64_t t, char *to);
    /* Writes out and lse of the head's rows of queries none of which sees a key. */
    void (*unseeing)(const struct attn_unit *u, struct attn_range queries);
    /* So many blocks of rows, the first of which starts at row0, of the unit's head or of several
     * from there on, all that the units have then: writes their rows of out and lse. They take each
     * tile one after the other. Before blocks of one head read it they call need(arg, t), which
     * returns once the tile is packed, and whether this thread has done that; those of several
     * pack it themselves, in the unit's only place. */
    void (*rows)(const struct attn_unit *u, int64_t heads, int64_t row0, int64_t blocks,
                 void *scratch, bool (*need)(void *arg, int64_t t), void *arg);
    /* When the weights of all rows are known: the probabilities of tile t, which lies packed at
     * `tile`, to key_sums and probs_fn, of all rows in their order; and the scratch memory of it,
     * INT64_MAX less alignment where it is more. */
    void (*columns)(const struct attn_unit *u, int64_t t, const char *tile, void *scratch);
    int64_t (*columns_bytes)(const struct attn_problem *p, int64_t room);
    int64_t weight_bytes; /* of what weights hold per row */
};

/* What a tile of the backward pass asks of its schedule. Strips are runs of rows of the unit. */
struct attn_strips {
    void *arg;
    void (*need)(void *arg, int64_t strip); /* returns once the strip is prepared */
    /* Returns once so many tiles have passed the strip; then it is the caller's, to pass it on. */
    void (*wait)(void *arg, int64_t strip, int64_t passed);
    void (*pass)(void *arg, int64_t strip);
};

/* The backward pass. u->packed holds the strips of a unit, u->room is as in the forward pass. */
struct attn_cpu_backward {
    int32_t block_rows, strip_rows;
    int64_t (*strip_bytes)(const struct attn_problem *p);
    int64_t (*scratch_bytes)(const struct attn_problem *p, int64_t room);
    void (*prepare)(const struct attn_unit *u, int64_t strip);
    /* Key tile n against all rows that see some of it: writes its rows of dk and dv, and the rows
     * of dq whose last tile it is. */
    void (*tile)(const struct attn_unit *u, int64_t n, void *scratch,
                 const struct attn_strips *strips);
    void (*finish)(const struct attn_unit *u); /* writes the rows of dq that see no tile */
    void (*sink)(const struct attn_problem *p, int64_t head); /* writes dsink of a head */
    /* dbias is written in so many pieces, each by itself; the scratch memory for it, INT64_MAX less
     * alignment where it is more. */
    int64_t (*biases)(const struct attn_problem *p);
    int64_t (*bias_bytes)(const struct attn_problem *p);
    void (*bias)(const struct attn_problem *p, int64_t piece, void *scratch);
};

#endif
