/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A problem: one attention call with its memory images. Every array of the call is a buffer of
 * elements, each element with a role, so that aliasing, gaps and interleaved tensors need no
 * special cases: an input element is visible through any tensor or it is visible to nobody.
 */
#ifndef TESTS_PROBLEM_IMAGE_H
#define TESTS_PROBLEM_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn/attn.h"
#include "element.h"
#include "truth.h"

enum { MOST_BATCH = 16 };

enum buffer_name {
    BUFFER_Q,
    BUFFER_K,
    BUFFER_V,
    BUFFER_OUT,
    BUFFER_LSE,
    BUFFER_MASK,
    BUFFER_CU_Q,
    BUFFER_CU_K,
    BUFFER_USED_Q,
    BUFFER_USED_K,
    BUFFERS
};

enum role {
    ROLE_UNSEEN = 0, /* gaps, tails, whatever no query may see: holds anything */
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_OUTPUT,
    ROLE_FIXED /* lengths, and mask bytes of tokens that take part */
};

struct buffer {
    size_t element;       /* bytes; 0: the call has no such array */
    int64_t count;        /* elements */
    unsigned char *image; /* as it is before the call */
    uint8_t *role;        /* [count] */
    int shift;            /* elements by which a copy is out of 64-byte alignment */
};

/* How a tensor lies in its buffer. */
struct tensor {
    enum buffer_name buffer;
    attn_dtype dtype;
    int64_t offset, batch, token, head; /* strides as they work */
    int64_t given[3];                   /* batch, token, head as the call is told them */
    int64_t heads, width;
};

struct side {
    bool packed, has_used;
    attn_itype cu_type, used_type;
    int64_t seqlen, tokens, max_seqlen;
    int64_t start[MOST_BATCH + 1]; /* packed: rows before the sequence; padded: 0 */
    int64_t room[MOST_BATCH], used[MOST_BATCH];
};

struct problem {
    uint64_t seed;
    attn_dtype dtype;
    int64_t batch, hq, hkv, d, dv;
    bool tell_hkv, tell_dv; /* false: left 0 in the call, which then takes hq and d */
    double scale;
    bool causal, window;
    attn_align align;
    int64_t left, right;
    bool has_mask, has_lse, own_workspace;
    int64_t mask_stride, mask_given;
    struct side query, key;
    struct tensor q, k, v, out, lse;
    struct buffer buffers[BUFFERS];
    const char *values, *layout; /* in words, for the line that tells the problem */
};

void problem_free(struct problem *p);

/* Gives the problem a buffer of `count` elements, all zero bytes and ROLE_UNSEEN. */
void problem_buffer(struct problem *p, enum buffer_name name, size_t element, int64_t count);

/* The cu_seqlens, seqused and key mask buffers as the sides tell; the mask is all ones. */
void problem_index_buffers(struct problem *p);

/* Index in its buffer of element 0 of a head of token `t` of sequence b. */
int64_t tensor_at(const struct tensor *t, const struct side *s, int64_t b, int64_t token,
                  int64_t head);

/* Index in the mask buffer of key j of sequence b. */
int64_t mask_at(const struct problem *p, int64_t b, int64_t j);

/* One past the last element that the tensor addresses. */
int64_t tensor_extent(const struct tensor *t, const struct side *s, int64_t batch);

/* Rows of tokens of each sequence (padded), or of all together (packed). */
int64_t side_rows(const struct side *s);

/* The rules and shape of sequence b, arrays left null but the mask, which the caller frees. */
struct truth_seq problem_rules(const struct problem *p, int64_t b);

/* Gives every element that the call reads or writes its role. */
void problem_roles(struct problem *p);

/* The call, its arrays at data[BUFFERS]. */
attn_desc problem_desc(const struct problem *p, unsigned char *const *data);

/* The problem in one line, without a newline. */
void problem_print(const struct problem *p, char *line, size_t size);

#endif
