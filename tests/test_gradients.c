/* SPDX-License-Identifier: BSD-3-Clause */
/* The backward pass of every backend and instruction set: against the truth on seeded random
 * problems, and in f64 against differences of the loss on small ones. */
#include "differences.h"
#include "gen.h"
#include "matrix.h"
#include "report.h"

enum { EACH = 20 }; /* so many problems to one for differences */

int main(int argc, char **argv)
{
    static const struct pass backward = {gen_backward, attn_backward};
    const struct options o = options_parse(argc, argv, "gradients", 350);
    struct target targets[MOST_TARGETS];

    report_begin(o.program);
    const int count = targets_open(targets, &o);
    matrix(&o, targets, count, &backward);
    differences(&o, targets, count, (o.count + EACH - 1) / EACH);
    targets_close(targets, count);
    return report_end();
}
