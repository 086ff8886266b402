/* SPDX-License-Identifier: BSD-3-Clause */
/* Keys that a block mask hides are never read on a device: there they lie where nobody may read.
 * Those that it shows to some rows only are. */
#include "device_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attn/attn.h"
#include "element.h"
#include "emulator/runtime.h"
#include "expect.h"

/* Blocks of keys are as large as pages of memory, and larger than any tile. */
enum { PAGE = 4096, D = 16, BLOCK = PAGE / (D * 2), BLOCKS = 6, NK = BLOCKS * BLOCK, NQ = 300 };
enum { QUERIES = 150, ROWS = NQ / QUERIES, HEADS = 2 }; /* blocks of queries, which no tile is */

static uint16_t *k, *v; /* NK rows each */
static uint16_t q[NQ * HEADS * D], out[NQ * HEADS * D], expected[NQ * HEADS * D];

/* Blocks 1 and 4 are hidden from all, 2 and 3 each from one block of queries, 5 from one head. */
static const uint8_t map[HEADS * ROWS * BLOCKS] = {1, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0,
                                                   1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1};

/* Small blocks, every second of which is hidden: the first of each tile. */
enum { SMALL = 16 };
static uint8_t stripes[NK / SMALL];

static attn_desc call_of(int64_t nq, bool small)
{
    attn_desc d = attn_desc_init();
    d.batch = d.heads_kv = 1;
    d.heads_q = HEADS;
    d.head_dim = D;
    d.query.seqlen = nq;
    d.key.seqlen = NK;
    d.q.data = q;
    d.k.data = k;
    d.v.data = v;
    d.out.data = out;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    d.block_mask = (attn_score_input){map, ATTN_BOOL, 0, ROWS * BLOCKS, BLOCKS, 1};
    d.block_q = QUERIES;
    d.block_k = BLOCK;
    if (small) {
        d.block_mask = (attn_score_input){stripes, ATTN_BOOL, 0, 0, 0, 1};
        d.block_k = SMALL;
    }
    return d;
}

static bool computes(int64_t nq, bool small)
{
    const attn_desc d = call_of(nq, small);
    memset(out, 0xff, sizeof out);
    return attn_forward(NULL, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess;
}

/* Whether `out` is `expected`, but for a few roundings. */
static bool is_near(int64_t nq)
{
    for (int64_t n = 0; n < nq * HEADS * D; n++)
        if (!(fabs(element_get(ATTN_F16, out, n) - element_get(ATTN_F16, expected, n)) < 0x1p-8))
            return false;
    return true;
}

/* Hidden blocks are readable or not. */
static void allow(int how)
{
    for (int n = 1; n < BLOCKS; n += 3) {
        mprotect(k + n * BLOCK * D, PAGE, how);
        mprotect(v + n * BLOCK * D, PAGE, how);
    }
}

static void own(int device)
{
    emulated_own(k, NK * D * 2, device, 0);
    emulated_own(v, NK * D * 2, device, 0);
    emulated_own(q, sizeof q, device, 0);
    emulated_own(out, sizeof out, device, 0);
    emulated_own((void *)map, sizeof map, device, 0);
    emulated_own(stripes, sizeof stripes, device, 0);
}

/* Whether a device gives what the host does. */
static bool as_the_host(int64_t nq, bool small)
{
    own(-1);
    const bool good = computes(nq, small);
    memcpy(expected, out, sizeof out);
    own(0);
    return good && computes(nq, small) && is_near(nq);
}

void test_hidden_blocks(void)
{
    static const int64_t lengths[] = {3, NQ}; /* the short form and the tall one */
    const int how = MAP_PRIVATE | MAP_ANONYMOUS;
    k = mmap(NULL, NK * D * 2, PROT_READ | PROT_WRITE, how, -1, 0);
    v = mmap(NULL, NK * D * 2, PROT_READ | PROT_WRITE, how, -1, 0);
    if (k == MAP_FAILED || v == MAP_FAILED || sysconf(_SC_PAGESIZE) != PAGE) {
        report_skip("blocks that nobody may read: pages are not of %d bytes", PAGE);
        return;
    }
    for (int n = 0; n < NK * D; n++) { /* each block has values of its own */
        k[n] = (uint16_t)(0xb800 + n * 53 % 1024);
        v[n] = (uint16_t)(0x3800 + n / (BLOCK * D) * 128 + n * 71 % 128);
    }
    for (int n = 0; n < NQ * HEADS * D; n++)
        q[n] = (uint16_t)(0x3c00 + n * 37 % 512);
    for (int n = 0; n < NK / SMALL; n++)
        stripes[n] = n % 2;
    for (int n = 0; n < 2; n++) {
        const bool good = as_the_host(lengths[n], true) && as_the_host(lengths[n], false);
        EXPECT(good, "%d queries, blocks that some rows see: \"%s\"", (int)lengths[n],
               attn_last_message(NULL));
        memcpy(expected, out, sizeof out);
        allow(PROT_NONE);
        const bool same = computes(lengths[n], false) && memcmp(out, expected, sizeof out) == 0;
        allow(PROT_READ | PROT_WRITE);
        EXPECT(same, "%d queries, hidden blocks: \"%s\"", (int)lengths[n],
               attn_last_message(NULL));
    }
    own(-1);
    munmap(k, NK * D * 2);
    munmap(v, NK * D * 2);
}
