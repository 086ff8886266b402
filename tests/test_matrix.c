/* SPDX-License-Identifier: BSD-3-Clause */
/* Every backend and instruction set against the truth, on seeded random problems. */
#include "gen.h"
#include "matrix.h"
#include "report.h"

int main(int argc, char **argv)
{
    static const struct pass forward = {gen_problem, attn_forward};
    const struct options o = options_parse(argc, argv, "matrix", 3000);
    struct target targets[MOST_TARGETS];

    report_begin(o.program);
    const int count = targets_open(targets, &o);
    matrix(&o, targets, count, &forward);
    targets_close(targets, count);
    return report_end();
}
