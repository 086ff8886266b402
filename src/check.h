/* SPDX-License-Identifier: BSD-3-Clause */
/* Every argument check of a descriptor, in one place. */
#ifndef ATTN_CHECK_H
#define ATTN_CHECK_H

#include "attn/attn.h"
#include "message.h"
#include "problem.h"

/* What the descriptor is checked for. */
enum attn_check_mode {
    ATTN_CHECK_RUN,   /* all of it: tensors are needed, outputs must not overlap */
    ATTN_CHECK_SHAPE, /* shapes, lengths and features only: tensors may be null */
    ATTN_CHECK_KEEP   /* these, and a keep mask that overlaps nothing */
};

/* Fills *problem from a descriptor that is sound for some backend, and *desc with a copy whose
 * missing fields (of an older header) are zero. Otherwise returns the ATTN_INVALID_ status (or
 * ATTN_UNSUPPORTED, for fields of a newer header) with the field and its value in *m. Reads no
 * tensor, writes nothing of the caller's. */
attn_status attn_check(const attn_desc *given, attn_pass pass, enum attn_check_mode mode,
                       attn_desc *desc, struct attn_problem *problem, struct attn_message *m);

/* The same for attn_dropout_mask(); *view becomes the mask, bytes over scores. */
attn_status attn_check_keep(const attn_desc *given, const attn_score_output *keep,
                            struct attn_problem *problem, struct attn_score_view *view,
                            struct attn_message *m);

#endif
