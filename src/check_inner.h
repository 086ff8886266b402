/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the parts of the check share: check.c has the descriptor's own fields and the order of the
 * steps, check_lengths.c the arrays of integers, check_tensors.c types and strides of tensors,
 * check_scores.c those of tensors over scores, check_memory.c everything's place in memory.
 */
#ifndef ATTN_CHECK_INNER_H
#define ATTN_CHECK_INNER_H

#include "check.h"
#include "overlap.h"

/* More than there are tensors and arrays in a descriptor. */
#define ATTN_OPERANDS 40

/* A tensor or array of the call. */
struct attn_operand {
    const char *name; /* as the caller writes it */
    bool written;
    bool anywhere; /* an array of integers: it need not lie where tensors do */
    struct attn_bytes bytes;
};

/* A check under way. */
struct attn_check_state {
    const attn_desc *d; /* the copy */
    enum attn_check_mode mode;
    struct attn_problem *p; /* filled step by step */
    struct attn_operand operands[ATTN_OPERANDS]; /* those given */
    int32_t count;
    const attn_score_output *keep; /* null but for attn_check_keep() */
    struct attn_score_view *keep_view;
    struct attn_message *m;
};

static inline const void *attn_field(const attn_desc *d, size_t offset)
{
    return (const char *)d + offset;
}

/* *to = the caller's descriptor, whichever header made it, as this one's, of `own` bytes. Its size
 * stands first; the structure had `first` bytes in the first header that had it. */
attn_status attn_check_copy(const void *given, size_t first, void *to, size_t own,
                            const char *initializer, struct attn_message *m);

/* The steps; each returns ATTN_OK or says what is wrong. */
attn_status attn_check_arrays(struct attn_check_state *c);  /* types of arrays of integers */
attn_status attn_check_types(struct attn_check_state *c);   /* types of tensors are types */
attn_status attn_check_dtypes(struct attn_check_state *c);  /* and go together; p->dtype */
attn_status attn_check_lengths(struct attn_check_state *c); /* p->query, p->key, p->prefix */
attn_status attn_check_nulls(struct attn_check_state *c);   /* tensors that are needed */
attn_status attn_check_strides(struct attn_check_state *c); /* p's views; adds the operands */
attn_status attn_check_places(struct attn_check_state *c);  /* of the operands; p->place */
attn_status attn_check_overlap(struct attn_check_state *c); /* of the operands */

/* The same steps for tensors over scores. */
attn_status attn_check_score_types(struct attn_check_state *c);
attn_status attn_check_score_dtypes(struct attn_check_state *c);
attn_status attn_add_scores(struct attn_check_state *c);

attn_status attn_check_type(struct attn_check_state *c, const char *name, attn_dtype dtype);
attn_status attn_wrong_dtype(struct attn_check_state *c, const char *name, attn_dtype got,
                             attn_dtype want);

/* Parts of these steps, of one array or side under the name that the caller knows it by. */
attn_status attn_check_array(struct attn_check_state *c, const char *name, attn_index a);
attn_status attn_check_side_fields(struct attn_check_state *c, const char *name,
                                   const attn_side *s); /* none that another layout has */

/* The lengths of a side, which count as the query's or the key's among c->p->unread; those that
 * the host cannot read need no bound. */
attn_status attn_check_side_lengths(struct attn_check_state *c, const char *name,
                                    const attn_side *s, bool key, struct attn_axis *axis);

static inline int64_t attn_index_size(attn_index a) { return a.type == ATTN_I64 ? 8 : 4; }

/* Adds what is no tensor to the operands. */
attn_status attn_add_arrays(struct attn_check_state *c); /* and sets p's documents */
attn_status attn_add_masks(struct attn_check_state *c);  /* and sets p's token masks */

/* Adds an operand whose strides and run still count elements of `size` bytes: checks that it is
 * aligned and that its last byte is at an address. `axes` names the strides, for the message. */
attn_status attn_add_operand(struct attn_check_state *c, const struct attn_operand *o, int64_t size,
                             const char *const *axes);

/* The same for an array [rows, width], `stride` elements from row to row. */
attn_status attn_add_rows(struct attn_check_state *c, const char *name, const void *data,
                          int64_t size, int64_t rows, int64_t stride, int64_t width);

/* Refuses negative strides; makes ATTN_BROADCAST 0. Nothing lies a stride apart on an axis of at
 * most one element: there *stride becomes no more than can be computed with. */
attn_status attn_check_stride(struct attn_check_state *c, const char *name, const char *axis,
                              int64_t extent, int64_t *stride);

#endif
