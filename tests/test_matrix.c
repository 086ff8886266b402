/* SPDX-License-Identifier: BSD-3-Clause */
/* Every backend and instruction set against the truth, on seeded random problems. */
#include "matrix.h"
#include "report.h"

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "matrix", 3000);
    const struct pass forward = {o.gen, attn_forward};
    struct target targets[MOST_TARGETS];

    report_begin(o.program);
    const int count = targets_open(targets, &o);
    matrix(&o, targets, count, &forward);
    targets_close(targets, count);
    return report_end();
}
