/* SPDX-License-Identifier: BSD-3-Clause */
/* CUDA graphs; lengths and tables of the host that take many launches to pass. */
#include <string.h>

#include "device_call.h"
#include "device_parts.h"
#include "emulator/runtime.h"
#include "expect.h"

enum { MANY = 1100 };

void test_graph(void)
{
    const attn_desc d = call_desc();
    call_move(0, 0);
    emulated_capture_begin();
    const attn_status status = attn_forward(NULL, &d);
    emulated_capture_end();
    EXPECT(status == ATTN_OK && call_untouched(), "capture: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < 2; n++) {
        memset(now.out, 0xff, sizeof now.out);
        memset(cu_q, 0x7f, sizeof cu_q); /* the host's lengths have been looked at */
        memset(cu_k, 0x7f, sizeof cu_k);
        EXPECT(emulated_graph_launch() == cudaSuccess && call_as_expected(), "launch %d of a graph",
               n);
    }
    call_move(-1, 0);
    call_fill();
    emulated_capture_begin(); /* host memory cannot be part of one, and says so */
    call_expect_refused("capture of host memory", ATTN_BACKEND_CUDA, &d, ATTN_DEVICE_ERROR,
                        "q: lies in host memory, and the stream");
    emulated_capture_end();
}

/* A graph with lengths on the device computes with those that stand there when it is launched. */
void test_graph_lengths(void)
{
    static const int32_t other_q[B + 1] = {0, 1, 6, 11}, other_k[B + 1] = {0, 2, 4, 20};
    attn_desc d = call_desc();
    uint16_t out[TQ * HQ * D];

    call_move(0, 0);
    memcpy(cu_q, other_q, sizeof cu_q);
    memcpy(cu_k, other_k, sizeof cu_k);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess,
           "other lengths: \"%s\"", attn_last_message(NULL));
    memcpy(out, now.out, sizeof out);
    call_fill();
    emulated_own(cu_q, sizeof cu_q, 0, 0);
    emulated_own(cu_k, sizeof cu_k, 0, 0);
    emulated_capture_begin();
    const attn_status status = attn_forward(NULL, &d);
    emulated_capture_end();
    EXPECT(status == ATTN_OK && call_untouched(), "capture: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < 4; n++) {
        call_fill();
        if (n % 2) {
            memcpy(cu_q, other_q, sizeof cu_q);
            memcpy(cu_k, other_k, sizeof cu_k);
        }
        EXPECT(emulated_graph_launch() == cudaSuccess &&
                   (n % 2 ? memcmp(now.out, out, sizeof out) == 0 : call_as_expected()),
               "launch %d of a graph with lengths on the device", n);
    }
    emulated_own(cu_q, 0, -1, 0);
    emulated_own(cu_k, 0, -1, 0);
    call_move(-1, 0);
    call_fill();
}

/* More lengths than one kernel's argument holds. */
void test_many(void)
{
    static uint16_t x[MANY], y[MANY];
    static int32_t cu[MANY + 1];
    attn_desc d = attn_desc_init();
    for (int n = 0; n < MANY; n++) {
        x[n] = (uint16_t)(0x3c00 + n % 1024);
        cu[n + 1] = n + 1;
    }
    d.batch = MANY;
    d.heads_q = d.head_dim = 1;
    d.query.layout = ATTN_PACKED;
    d.query.tokens = MANY;
    d.query.cu_seqlens.data = cu;
    d.key = d.query;
    d.q.data = d.k.data = d.v.data = x;
    d.out.data = y;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    emulated_own(x, sizeof x, 0, 0);
    emulated_own(y, sizeof y, 0, 0);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
               memcmp(x, y, sizeof x) == 0,
           "%d sequences of one token: \"%s\"", MANY, attn_last_message(NULL));
    emulated_own(x, sizeof x, -1, 0);
    emulated_own(y, sizeof y, -1, 0);
}

/* Launches of a call whose keys, of three sequences, have a table of so many columns; or -1. */
static long launches_with(int columns)
{
    enum { PAGE = 4, WIDE = 4000 };
    static int32_t table[B * WIDE], used[B] = {17, 0, 5};
    attn_desc d = call_desc();
    for (int n = 0; n < B * columns; n++)
        table[n] = n % columns < 5 ? n % columns : -1; /* past the lengths: none */
    d.key.layout = ATTN_PAGED;
    d.key.tokens = 0;
    d.key.cu_seqlens.data = NULL;
    d.key.seqused.data = used;
    d.key.pages = TK / PAGE;
    d.key.page_size = PAGE;
    d.key.max_pages = columns;
    d.key.block_table.data = table;
    const long launched = emulated_calls("cudaLaunchKernel");
    const attn_status status = attn_forward(NULL, &d);
    memset(table, 0x5a, sizeof table);
    if (status != ATTN_OK || cudaStreamSynchronize(NULL) != cudaSuccess)
        return -1;
    return emulated_calls("cudaLaunchKernel") - launched;
}

/* Of a table in host memory no more goes to the device than lengths can reach. */
void test_wide_table(void)
{
    call_move(0, 0);
    const long narrow = launches_with(5), wide = launches_with(4000);
    EXPECT(narrow > 0 && wide == narrow, "%ld launches with 5 columns of pages, %ld with 4000",
           narrow, wide);
    call_move(-1, 0);
    call_fill();
}
