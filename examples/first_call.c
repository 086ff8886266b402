/* SPDX-License-Identifier: BSD-3-Clause */
/* Three sequences of 2, 0 and 3 tokens, packed end to end; 1 head of size 4. */
#include <attn/attn.h>
#include <stdio.h>

int main(void)
{
    const float x[5][4] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {1, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}};
    const int32_t cu_seqlens[] = {0, 2, 2, 5};
    float out[5][4];

    attn_desc d = attn_desc_init();
    d.batch = 3;
    d.heads_q = 1;
    d.head_dim = 4;
    d.query.layout = ATTN_PACKED;
    d.query.tokens = 5;
    d.query.cu_seqlens.data = cu_seqlens;
    d.key = d.query;
    d.q.data = d.k.data = d.v.data = x;
    d.out.data = out;
    if (attn_forward(NULL, &d) != ATTN_OK) {
        fprintf(stderr, "%s\n", attn_last_message(NULL));
        return 1;
    }
    for (int t = 0; t < 5; t++)
        printf("%.4f %.4f %.4f %.4f\n", out[t][0], out[t][1], out[t][2], out[t][3]);
    return 0;
}
