/* SPDX-License-Identifier: BSD-3-Clause */
/* Keys that a block mask hides are never read on a device: there they lie where nobody may read. */
#include "device_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attn/attn.h"
#include "emulator/runtime.h"
#include "expect.h"

/* Blocks of keys are as large as pages of memory, and larger than any tile. */
enum { PAGE = 4096, D = 16, BLOCK = PAGE / (D * 2), BLOCKS = 5, NK = BLOCKS * BLOCK, NQ = 300 };
enum { QUERIES = 150, ROWS = NQ / QUERIES }; /* of a block */

static uint16_t *k, *v; /* NK rows each */
static uint16_t q[NQ * D], out[NQ * D], expected[NQ * D];

/* Blocks 1 and 4 are hidden from all; 2 and 3 each from some. */
static const uint8_t map[ROWS * BLOCKS] = {1, 0, 1, 0, 0, 1, 0, 0, 1, 0};

static attn_desc call_of(int64_t nq)
{
    attn_desc d = attn_desc_init();
    d.batch = d.heads_q = 1;
    d.head_dim = D;
    d.query.seqlen = nq;
    d.key.seqlen = NK;
    d.q.data = q;
    d.k.data = k;
    d.v.data = v;
    d.out.data = out;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    d.block_mask = (attn_score_input){map, ATTN_BOOL, 0, 0, BLOCKS, 1};
    d.block_q = QUERIES;
    d.block_k = BLOCK;
    return d;
}

static bool computes(int64_t nq)
{
    const attn_desc d = call_of(nq);
    memset(out, 0xff, sizeof out);
    return attn_forward(NULL, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess;
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
    for (int n = 0; n < NK * D; n++) {
        k[n] = (uint16_t)(0xb800 + n * 53 % 1024);
        v[n] = (uint16_t)(0x3800 + n * 71 % 1024);
    }
    for (int n = 0; n < NQ * D; n++)
        q[n] = (uint16_t)(0x3c00 + n * 37 % 512);
    own(0);
    for (int n = 0; n < 2; n++) {
        bool good = computes(lengths[n]);
        memcpy(expected, out, sizeof out);
        allow(PROT_NONE);
        good = good && computes(lengths[n]);
        allow(PROT_READ | PROT_WRITE);
        EXPECT(good && memcmp(out, expected, sizeof out) == 0, "%d queries, hidden blocks: \"%s\"",
               (int)lengths[n], attn_last_message(NULL));
    }
    own(-1);
    munmap(k, NK * D * 2);
    munmap(v, NK * D * 2);
}
