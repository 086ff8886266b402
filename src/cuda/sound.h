/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sound lengths, offsets and tables from arrays on the device, which no check has read and which
 * may hold anything. Kernels that come after read only these copies. What is not sound is noted; of
 * many things the lowest field and entry stays.
 */
#ifndef ATTN_CUDA_SOUND_H
#define ATTN_CUDA_SOUND_H

#include "cuda/device.h"
#include "cuda/stream.h"

namespace sound {

enum { THREADS = 256, SHARED = THREADS * 8 };

DEVICE int64_t within(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }

DEVICE void put_index(const void *array, bool is64, int64_t n, int64_t x)
{
    if (is64)
        ((int64_t *)array)[n] = x;
    else
        ((int32_t *)array)[n] = (int32_t)x;
}

DEVICE void note(const struct attn_cuda_soundness &s, int field, int64_t entry)
{
    dev::least_atomic(s.report, (uint64_t)field << ATTN_CUDA_FIELD_SHIFT | (uint64_t)entry);
}

/* The largest of x in this thread and those before; by a block, with room for a number of each. */
DEVICE int64_t most_before(int64_t x, int64_t *room)
{
    room[dev::thread()] = x;
    dev::sync();
    for (int step = 1; step < THREADS; step *= 2) {
        const int64_t other = dev::thread() < step ? x : room[dev::thread() - step];
        x = other > x ? other : x;
        dev::sync();
        room[dev::thread()] = x;
        dev::sync();
    }
    return x;
}

/* cu_seqlens, by a block: from 0 on, never decreasing, no more than there are rows. */
DEVICE void make_starts(const struct attn_cuda_soundness &s, const struct attn_axis &given,
                        const struct attn_axis &to, int field, int64_t *room)
{
    int64_t before = 0; /* the largest of earlier rounds */
    for (int64_t n0 = 0; n0 <= s.batch; n0 += THREADS) {
        const int64_t n = n0 + dev::thread();
        int64_t start = 0;
        if (n <= s.batch) {
            const int64_t x = attn_index_at(given.cu, given.cu64, n);
            start = within(x, n == 0 ? 0 : to.rows);
            if (x != start || (n > 0 && x < attn_index_at(given.cu, given.cu64, n - 1)))
                note(s, field, n);
        }
        start = most_before(start > before ? start : before, room);
        if (n <= s.batch)
            put_index(to.cu, to.cu64, n, start);
        before = room[THREADS - 1];
        dev::sync();
    }
}

/* nq or nk of a sequence: no more than its room and the caller's bound. */
DEVICE int64_t length_of(const struct attn_cuda_soundness &s, const struct attn_axis &given,
                         const struct attn_axis &to, int64_t b, int field, int bound)
{
    const int64_t room = to.page_size && to.pages == 0 ? 0 : attn_axis_room(&to, b);
    const int64_t x = given.used ? attn_index_at(given.used, given.used64, b) : room;
    const int64_t length = within(x, room);
    if (x != length)
        note(s, field, b);
    if (length > to.max)
        note(s, bound, b);
    return within(length, to.max);
}

/* bias_offset of a sequence; whether its part lies between that and the next one. */
DEVICE bool make_offset(const struct attn_cuda_soundness &s, int64_t b, int64_t nq, int64_t nk)
{
    const struct attn_integers given = s.given.bias_offset, to = s.sound.bias_offset;
    const int64_t at = attn_index_at(given.data, given.is64, b);
    const int64_t next = attn_index_at(given.data, given.is64, b + 1);
    bool fits = at >= 0 && at <= next && next <= s.bias_elements;
    if (fits && nq > 0 && s.bias_heads > 0)
        fits = nk <= (next - at) / nq / s.bias_heads;
    if (b == 0 && at < 0)
        note(s, ATTN_BIAS_OFFSET, 0);
    if (!fits)
        note(s, ATTN_BIAS_OFFSET, b + 1);
    put_index(to.data, to.is64, b, within(at, s.bias_elements));
    return fits;
}

/* All but pages, by one block. */
KERNEL lengths(GRID_CONSTANT const struct attn_cuda_soundness s)
{
    const struct attn_cuda_guides &given = s.given, &to = s.sound;
    int64_t *const room = (int64_t *)dev::shared();
    if (dev::thread() == 0)
        *s.report = ATTN_CUDA_SOUND;
    dev::sync();
    if (to.query.cu != given.query.cu)
        make_starts(s, given.query, to.query, ATTN_QUERY_CU, room);
    if (to.key.cu != given.key.cu)
        make_starts(s, given.key, to.key, ATTN_KEY_CU, room);
    for (int64_t b = dev::thread(); b < s.batch; b += THREADS) {
        const int64_t nk =
            length_of(s, given.key, to.key, b, ATTN_KEY_USED, ATTN_CUDA_KEY_MAX);
        int64_t nq =
            length_of(s, given.query, to.query, b, ATTN_QUERY_USED, ATTN_CUDA_QUERY_MAX);
        if (to.bias_offset.data && !make_offset(s, b, nq, nk))
            nq = 0;
        if (to.query.used)
            put_index(to.query.used, to.query.used64, b, nq);
        if (to.key.used)
            put_index(to.key.used, to.key.used64, b, nk);
        if (to.prefix.data) {
            const int64_t x = attn_index_at(given.prefix.data, given.prefix.is64, b);
            if (x < 0)
                note(s, ATTN_PREFIX, b);
            put_index(to.prefix.data, to.prefix.is64, b, x < 0 ? 0 : x);
        }
    }
}

/* The pages of tokens that take part; after the lengths. */
KERNEL pages(GRID_CONSTANT const struct attn_cuda_soundness s)
{
    const struct attn_axis &given = s.given.key, &to = s.sound.key;
    const int64_t entries = s.batch * to.max_pages, step = (int64_t)dev::blocks() * THREADS;
    for (int64_t n = (int64_t)dev::block() * THREADS + dev::thread(); n < entries; n += step) {
        const int64_t b = n / to.max_pages;
        if (n % to.max_pages * to.page_size >= attn_axis_len(&to, b))
            continue;
        const int64_t x = attn_index_at(given.table, given.table64, n);
        const int64_t page = within(x, to.pages - 1);
        if (x != page)
            note(s, ATTN_KEY_TABLE, n);
        put_index(to.table, to.table64, n, page);
    }
}

/* Tokens that join a cache, behind those that it has. */
KERNEL fit(GRID_CONSTANT const struct attn_cuda_soundness s)
{
    const struct attn_axis &joins = s.sound.query, &cache = s.sound.key, &given = s.given.key;
    const int64_t step = (int64_t)dev::blocks() * THREADS;
    for (int64_t b = (int64_t)dev::block() * THREADS + dev::thread(); b < s.batch; b += step) {
        const int64_t before = attn_axis_len(&cache, b), n = attn_axis_len(&joins, b);
        const int64_t room = attn_axis_room(&cache, b) - before;
        const int64_t after = before + within(n, room);
        if (n > room) {
            note(s, ATTN_KEY_USED, b);
            put_index(joins.used, joins.used64, b, room);
        }
        if (!given.table || before == after)
            continue;
        for (int64_t e = before / cache.page_size; e * cache.page_size < after; e++) {
            const int64_t page = attn_index_at(given.table, given.table64, b * cache.max_pages + e);
            if (page < 0 || page >= cache.pages)
                note(s, ATTN_KEY_TABLE, b * cache.max_pages + e);
        }
    }
}

} // namespace sound

#endif
