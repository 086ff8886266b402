/* SPDX-License-Identifier: BSD-3-Clause */
/* Lengths and tables of rotary and appends on a device that hold anything: what is wrong is told,
 * nothing is touched but the tensors, and sequences that are sound get what is theirs. */
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "device_arrays.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "test_device_helpers.h"

enum { B = 4, S = 6, T = 15, D = 6, ROOM = 12, PAGE = 4, MOST = 3, PAGES = B * MOST };

/* All of a call's memory, once sound and once not. */
struct memory {
    float x[T > B * S ? T * D : B * S * D], out[PAGES * PAGE * D];
    int32_t cu[B + 1], new[B], cache_cu[B + 1], before[B], after[B], table[B * MOST];
    uint64_t report;
};

/* Which array holds garbage, and what the message calls it. */
enum wrong { NONE, NEW_CU, NEW_USED, CACHE_CU, CACHE_USED, TOO_LONG, TABLE };
static const char *const words[] = {"", "tokens.cu_seqlens", "tokens.seqused", "cache.cu_seqlens",
                                    "cache.seqused", "cache.seqused", "cache.block_table"};

static const int32_t starts[B + 1] = {0, 5, 5, 11, 14}, cache_starts[B + 1] = {0, 11, 23, 34, 46};

/* The same on the device, each array an allocation of its own. */
static struct memory *host;
static void *on_device[9];

static void fill(struct memory *m)
{
    memset(m, 0, sizeof *m);
    for (int n = 0; n < T * D || n < B * S * D; n++)
        m->x[n] = (float)(n + 1);
    for (int b = 0; b < B; b++) {
        m->new[b] = b == 1 ? 0 : 1 + b;
        m->before[b] = b * 2;
    }
    memcpy(m->cu, starts, sizeof starts);
    memcpy(m->cache_cu, cache_starts, sizeof cache_starts);
    for (int n = 0; n < B * MOST; n++)
        m->table[n] = n * 7 % PAGES;
}

static int32_t garbage(int32_t most)
{
    const int32_t far[] = {-1, INT32_MIN, INT32_MAX, most + 1, most + 1000};
    return far[below(5)];
}

/* Spoils an entry of sequence b. */
static void spoil(struct memory *m, enum wrong wrong, int b)
{
    switch (wrong) {
    case NONE: break;
    case NEW_CU: m->cu[b + 1] = garbage(T); break;
    case NEW_USED: m->new[b] = garbage(S); break;
    case CACHE_CU: m->cache_cu[b + 1] = garbage(PAGES * PAGE); break;
    case CACHE_USED: m->before[b] = garbage(ROOM); break;
    case TOO_LONG:
        m->new[b] = 3;
        m->before[b] = ROOM - 2;
        break;
    case TABLE: m->table[b * MOST + m->before[b] / PAGE] = garbage(PAGES - 1); break;
    }
}

static struct piece {
    size_t offset, bytes;
} pieces[] = {
#define PIECE(field) {offsetof(struct memory, field), sizeof ((struct memory *)0)->field}
    PIECE(x), PIECE(out), PIECE(cu), PIECE(new), PIECE(cache_cu), PIECE(before), PIECE(after),
    PIECE(table), PIECE(report)};
enum { X, OUT, CU, NEW, C_CU, BEFORE, AFTER, PAGE_TABLE, REPORT, COUNT };

static void lend(struct memory *m)
{
    host = m;
    for (int n = 0; n < COUNT; n++) {
        cudaMalloc(&on_device[n], pieces[n].bytes);
        memcpy(on_device[n], (char *)m + pieces[n].offset, pieces[n].bytes);
    }
}

static void take_back(void)
{
    cudaStreamSynchronize(NULL);
    for (int n = 0; n < COUNT; n++) {
        memcpy((char *)host + pieces[n].offset, on_device[n], pieces[n].bytes);
        cudaFree(on_device[n]);
    }
}

static attn_append_desc append_of(enum wrong wrong, int layout)
{
    attn_append_desc d = attn_append_desc_init();
    d.batch = B;
    d.heads_kv = 1;
    d.head_dim = D;
    d.tokens.seqlen = S;
    if (wrong == NEW_CU) {
        d.tokens.layout = ATTN_PACKED;
        d.tokens.tokens = T;
        d.tokens.cu_seqlens.data = on_device[CU];
    } else {
        d.tokens.seqused.data = on_device[NEW];
    }
    d.cache.layout = (attn_layout)layout;
    d.cache.seqlen = layout == ATTN_PADDED ? ROOM : 0;
    if (layout == ATTN_PACKED) {
        d.cache.tokens = PAGES * PAGE;
        d.cache.cu_seqlens.data = on_device[C_CU];
    } else if (layout == ATTN_PAGED) {
        d.cache.pages = PAGES;
        d.cache.page_size = PAGE;
        d.cache.max_pages = MOST;
        d.cache.block_table.data = on_device[PAGE_TABLE];
    }
    d.cache.seqused.data = on_device[BEFORE];
    d.k.data = on_device[X];
    d.k_cache.data = on_device[OUT];
    d.lengths = on_device[AFTER];
    d.report = on_device[REPORT];
    return d;
}

/* The call's status and the report's. */
static void expect_told(const char *what, int64_t seed, attn_status call, attn_status told,
                        enum wrong wrong, const char *message)
{
    const attn_status expected = wrong == NONE    ? ATTN_OK
                                 : wrong == TABLE ? ATTN_INVALID_INDEX
                                                  : ATTN_INVALID_LENGTHS;
    EXPECT(call == ATTN_OK && told == expected && strstr(message, words[wrong]) == message,
           "%s %lld: %s, then %s, \"%s\"; expected %s", what, (long long)seed,
           attn_status_name(call), attn_status_name(told), message, words[wrong]);
}

static void append_spoilt(struct memory *m, int64_t seed, enum wrong wrong, int layout)
{
    lend(m);
    attn_append_desc d = append_of(wrong, layout);
    emulated_hide(1);
    const attn_status call = attn_cache_append(NULL, &d);
    const attn_status told = attn_cache_append_status(NULL, &d);
    emulated_hide(0);
    expect_told("append", seed, call, told, wrong, attn_last_message(NULL));
    take_back();
}

/* The row of place t of a sequence, of at least 11. */
static int row_of(int layout, int b, int t)
{
    switch (layout) {
    case ATTN_PACKED: return cache_starts[b] + t;
    case ATTN_PAGED: return (b * MOST + t / PAGE) * 7 % PAGES * PAGE + t % PAGE;
    default: return b * ROOM + t;
    }
}

/* Places and lengths that two calls differ in, but for those of sequence `except`. */
static long differences(const struct memory *a, const struct memory *z, int layout, int except)
{
    long count = 0;
    for (int b = 0; b < B; b++) {
        if (b == except)
            continue;
        count += a->after[b] != z->after[b];
        for (int t = 0; t < 11; t++) {
            const int at = row_of(layout, b, t) * D;
            count += memcmp(a->out + at, z->out + at, D * sizeof *a->out) != 0;
        }
    }
    return count;
}

static void test_spoilt_append(int64_t seed)
{
    static struct memory sound, spoilt;
    enum wrong wrong = (enum wrong)below(TABLE + 1);
    const int layout = wrong == TABLE      ? ATTN_PAGED
                       : wrong == CACHE_CU ? ATTN_PACKED
                                           : (int)below(3);
    const int b = wrong == TABLE ? 2 : (int)below(B);
    if (wrong == CACHE_USED && layout == ATTN_PACKED)
        wrong = NONE;
    fill(&sound);
    fill(&spoilt);
    spoil(&spoilt, wrong, b);
    if (wrong == TOO_LONG && layout == ATTN_PACKED)
        spoilt.before[b] = cache_starts[b + 1] - cache_starts[b] - 2;
    append_spoilt(&sound, seed, NONE, layout);
    append_spoilt(&spoilt, seed, wrong, layout);
    if (wrong != NEW_CU && wrong != CACHE_CU)
        EXPECT(differences(&sound, &spoilt, layout, wrong == NONE ? -1 : b) == 0,
               "append %lld: garbage of sequence %d changes another's", (long long)seed, b);
}

static void rotate_spoilt(struct memory *m, int64_t seed, enum wrong wrong, bool packed)
{
    attn_rotary_desc d = attn_rotary_desc_init();
    lend(m);
    d.batch = B;
    d.heads = 1;
    d.head_dim = D;
    d.tokens.seqlen = packed ? 0 : S;
    d.tokens.layout = packed ? ATTN_PACKED : ATTN_PADDED;
    d.tokens.tokens = packed ? T : 0;
    d.tokens.cu_seqlens.data = packed ? on_device[CU] : NULL;
    d.tokens.seqused.data = packed ? NULL : on_device[NEW];
    d.x.data = on_device[X];
    d.out.data = on_device[OUT];
    d.report = on_device[REPORT];
    emulated_hide(1);
    const attn_status call = attn_rotary(NULL, &d);
    const attn_status told = attn_rotary_status(NULL, &d);
    emulated_hide(0);
    expect_told("rotary", seed, call, told, wrong, attn_last_message(NULL));
    take_back();
}

static void test_spoilt_rotary(int64_t seed)
{
    static struct memory sound, spoilt;
    const enum wrong wrong = (enum wrong)below(NEW_USED + 1);
    const bool packed = wrong == NEW_CU || (wrong == NONE && maybe(50));
    const int b = (int)below(B);
    fill(&sound);
    fill(&spoilt);
    spoil(&spoilt, wrong, b);
    rotate_spoilt(&sound, seed, NONE, packed);
    rotate_spoilt(&spoilt, seed, wrong, packed);
    for (int other = 0; !packed && other < B; other++)
        EXPECT(other == b || memcmp(sound.out + other * S * D, spoilt.out + other * S * D,
                                    S * D * sizeof *sound.out) == 0,
               "rotary %lld: garbage of sequence %d changes another's", (long long)seed, b);
}

/* Without a report there is nothing to tell; where the host reads all lengths, all is well. */
static void test_no_report(void)
{
    static struct memory m;
    fill(&m);
    lend(&m);
    attn_append_desc d = append_of(NONE, ATTN_PADDED);
    d.report = NULL;
    EXPECT(attn_cache_append(NULL, &d) == ATTN_OK &&
               attn_cache_append_status(NULL, &d) == ATTN_INVALID_NULL,
           "no report: \"%s\"", attn_last_message(NULL));
    d.tokens.seqused.data = m.new;
    d.cache.seqused.data = m.before;
    d.lengths = NULL;
    EXPECT(attn_cache_append_status(NULL, &d) == ATTN_OK, "lengths of the host: \"%s\"",
           attn_last_message(NULL));
    d.report = (char *)on_device[REPORT] + 4;
    EXPECT(attn_cache_append(NULL, &d) == ATTN_INVALID_STRIDE, "a report at an odd place: \"%s\"",
           attn_last_message(NULL));
    d.report = &m.report;
    EXPECT(attn_cache_append(NULL, &d) == ATTN_INVALID_CONFLICT, "a report elsewhere: \"%s\"",
           attn_last_message(NULL));
    take_back();
}

void test_garbage(int64_t seed)
{
    begin_case("garbage", seed);
    if (seed == 0)
        test_no_report();
    test_spoilt_append(seed);
    test_spoilt_rotary(seed);
    end_case();
}
