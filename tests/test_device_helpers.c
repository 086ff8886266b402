/* SPDX-License-Identifier: BSD-3-Clause */
/* Batch helpers, rotary, cache appends and merges on an emulated device. */
#include <stdlib.h>

#include "report.h"
#include "test_device_helpers.h"

enum { CASES = 120 };

int main(int argc, char **argv)
{
    static void (*const tests[])(int64_t seed) = {
        test_from_mask, test_from_lengths, test_unpad, test_pad, test_pad_anyhow, test_gather,
        test_gather_backward, test_backward_anyhow, test_positions, test_rotary, test_append,
        test_merge, test_garbage};
    const int64_t count = report_count(argc, argv, CASES);
    report_begin("device-helpers");
    unsetenv("ATTN_BACKEND");
    test_places();
    test_wide_cache();
    for (int64_t seed = 0; seed < count; seed++)
        for (size_t n = 0; n < sizeof tests / sizeof *tests; n++)
            tests[n](seed);
    return report_end();
}
