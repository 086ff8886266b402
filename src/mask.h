/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which keys a query sees, for masks that are a range: causal, with a prefix or without, and
 * window, with either alignment. The rule of a call becomes the band of one sequence, and a band
 * gives each row a half-open range of keys whose ends never move left from row to row. Tile ranges,
 * skipped tiles and tiles without an edge all follow from it. Compiles as C11 and as CUDA.
 */
#ifndef ATTN_MASK_H
#define ATTN_MASK_H

#include <stdint.h>

#ifdef __CUDACC__
#define ATTN_HD __host__ __device__
#else
#define ATTN_HD
#endif

/* Longer than any sequence, short enough that sums of three do not overflow. */
#define ATTN_FAR (INT64_C(1) << 60)

/* The same for every sequence of a call. */
struct attn_mask_rule {
    int64_t left, right; /* keys seen before and after the query's own position, 0 to ATTN_FAR */
    int32_t causal;       /* 1: none after it, except before the sequence's prefix */
    int32_t bottom_right; /* 1: positions are shifted by nk - nq */
};

/* Row i sees keys max(0, i + lo) <= j < min(nk, i + hi, max(i + next, prefix)). */
struct attn_band {
    int64_t lo, hi, next, prefix, nk;
};

struct attn_range {
    int64_t lo, hi; /* lo <= hi; empty if equal */
};

/* prefix: keys that causal does not hide; 0 without one. */
static inline ATTN_HD struct attn_band attn_band_of(struct attn_mask_rule rule, int64_t nq,
                                                    int64_t nk, int64_t prefix)
{
    const int64_t offset = rule.bottom_right ? nk - nq : 0;
    struct attn_band band;
    band.lo = offset - rule.left;
    band.hi = offset + rule.right + 1;
    band.next = rule.causal ? offset + 1 : ATTN_FAR;
    band.prefix = prefix;
    band.nk = nk;
    return band;
}

/* The keys that row i sees. */
static inline ATTN_HD struct attn_range attn_band_row(struct attn_band band, int64_t i)
{
    const int64_t next = i + band.next > band.prefix ? i + band.next : band.prefix;
    struct attn_range r;
    r.lo = i + band.lo > 0 ? i + band.lo : 0;
    r.hi = i + band.hi < band.nk ? i + band.hi : band.nk;
    if (r.hi > next)
        r.hi = next;
    if (r.lo > band.nk)
        r.lo = band.nk;
    if (r.hi < r.lo)
        r.hi = r.lo;
    return r;
}

/* The keys that some row of i0 .. i1 - 1 may see. */
static inline ATTN_HD struct attn_range attn_band_any(struct attn_band band, int64_t i0, int64_t i1)
{
    const struct attn_range last = attn_band_row(band, i1 - 1);
    struct attn_range r = attn_band_row(band, i0);
    if (r.hi < last.hi)
        r.hi = last.hi;
    return r;
}

/* The rows of 0 .. nq - 1 that see a key: all between the first and the last of them do. */
static inline ATTN_HD struct attn_range attn_band_rows(struct attn_band band, int64_t nq)
{
    struct attn_range r = {0, nq < band.nk - band.lo ? nq : band.nk - band.lo};
    if (r.lo < 1 - band.hi)
        r.lo = 1 - band.hi;
    if (band.prefix <= 0 && r.lo < 1 - band.next)
        r.lo = 1 - band.next;
    if (band.nk <= 0 || r.hi < r.lo)
        r.hi = r.lo = 0;
    return r;
}

/* Whether every row of i0 .. i1 - 1 sees all keys j0 .. j1 - 1. */
static inline ATTN_HD int attn_band_whole(struct attn_band band, int64_t i0, int64_t i1, int64_t j0,
                                          int64_t j1)
{
    return i1 - 1 + band.lo <= j0 && j1 <= attn_band_row(band, i0).hi;
}

#endif
