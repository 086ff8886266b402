/* SPDX-License-Identifier: BSD-3-Clause */
/* What rotary and the cache share of the check. */
#ifndef ATTN_ROTARY_H
#define ATTN_ROTARY_H

#include "check_blocks.h"
#include "tokens.h"

/* t->rotation = the caller's with its defaults filled in, for heads of t->head_dim. */
attn_status attn_check_rotation(struct attn_block_check *k, const attn_rotation *given,
                                struct attn_tokens *t);

/* t->positions and t->offsets, of the tokens of t->from. */
attn_status attn_check_positions(struct attn_block_check *k, attn_index positions,
                                 attn_index offsets, const char *offsets_name,
                                 struct attn_tokens *t);

#endif
