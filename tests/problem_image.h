/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A problem: one attention call, forward or backward, with its memory images. Every array of the
 * call is a buffer of elements, each element with a role, so that aliasing, gaps and interleaved
 * tensors need no special cases: an input element is visible through any tensor or it is visible to
 * nobody.
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
    BUFFER_KEY_MASK,
    BUFFER_CU_Q,
    BUFFER_CU_K,
    BUFFER_USED_Q,
    BUFFER_USED_K,
    BUFFER_TABLE,
    BUFFER_QUERY_MASK,
    BUFFER_MASK,
    BUFFER_BLOCK_MASK,
    BUFFER_BIAS,
    BUFFER_BIAS_OFFSET,
    BUFFER_ALIBI,
    BUFFER_SINK,
    BUFFER_DOCS_Q,
    BUFFER_DOCS_K,
    BUFFER_PREFIX,
    BUFFER_PROBS,
    BUFFER_KEY_SUMS,
    BUFFER_DOUT,
    BUFFER_DLSE,
    BUFFER_DQ,
    BUFFER_DK,
    BUFFER_DV,
    BUFFER_DBIAS,
    BUFFER_DSINK,
    BUFFERS
};
extern const char *const buffer_names[BUFFERS];

enum role {
    ROLE_UNSEEN = 0, /* gaps, tails, whatever no query may see: holds anything */
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_OUTPUT,
    ROLE_FIXED /* whatever else may matter: lengths, masks, biases, slopes */
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

/* How a tensor over (sequence, head, query, key) lies in its buffer; stride 0 repeats. */
struct plane {
    attn_dtype dtype;
    int64_t offset, batch, head, query, key;
    bool untold; /* the call is told no strides: contiguous */
};

struct side {
    bool packed, paged, has_used;
    attn_itype cu_type, used_type, table_type;
    int64_t seqlen; /* padded: S; paged: the extent that arrays per token have in place of it */
    int64_t tokens, max_seqlen;
    int64_t start[MOST_BATCH + 1]; /* packed: rows before the sequence; otherwise 0 */
    int64_t room[MOST_BATCH], used[MOST_BATCH];
    int64_t pages, page_size, max_pages; /* paged */
    int64_t *table; /* [batch][max_pages], freed with the problem; entries that are not used: -1 */
};

struct problem {
    uint64_t seed;
    attn_dtype dtype;
    int64_t batch, hq, hkv, d, dv;
    bool tell_hkv, tell_dv; /* false: left 0 in the call, which then takes hq and d */
    struct side query, key;
    struct tensor q, k, v, out, lse;
    bool has_lse, own_workspace;
    bool plain; /* none of what follows but causal, window and the key mask */

    double scale, softcap;
    bool has_bias, bias_by_offset, bias_by_head;
    struct plane bias; /* of which only dtype matters with offsets */
    attn_itype offset_type;
    int64_t bias_start[MOST_BATCH + 1];
    bool has_alibi, has_sink;
    struct tensor alibi, sink;

    bool causal, window;
    attn_align align;
    int64_t left, right;
    bool has_prefix;
    attn_itype prefix_type;
    int64_t prefix[MOST_BATCH];
    bool has_key_mask, has_query_mask;
    bool one_mask; /* the query mask is the key mask */
    int64_t key_mask_stride, key_mask_given, query_mask_stride, query_mask_given;
    bool has_mask, has_block_mask, has_docs;
    struct plane mask, block;
    int64_t block_q, block_k;
    attn_itype query_docs_type, key_docs_type;

    double dropout;
    uint64_t dropout_seed;
    uint32_t dropout_offset;
    int64_t first_sequence;

    bool has_probs, has_tiles, has_sums;
    struct plane probs;
    struct tensor sums; /* over key rows and query heads */

    bool backward; /* a call of attn_backward: out and lse are inputs */
    bool smooth;   /* small, f64, without jumps: for differences */
    bool many_keys; /* for few rows, in a 16-bit type: tile after tile of keys */
    bool has_dlse, has_dbias, has_dsink;
    struct tensor dout, dlse, dsink;
    struct tensor grad_q, grad_k, grad_v; /* dq, dk and dv */
    struct plane dbias; /* with offsets that of the bias */

    struct buffer buffers[BUFFERS];
    const char *values, *layout; /* in words, for the line that tells the problem */
};

void problem_free(struct problem *p);

/* Gives the problem a buffer of `count` elements, all zero bytes and ROLE_UNSEEN. */
void problem_buffer(struct problem *p, enum buffer_name name, size_t element, int64_t count);

/* A buffer of n integers, all of them ROLE_FIXED. */
void problem_integers(struct problem *p, enum buffer_name name, attn_itype type, const int64_t *x,
                      int64_t n);
int64_t problem_integer(const struct problem *p, enum buffer_name name, attn_itype type,
                        int64_t index);
void problem_set_integer(struct problem *p, enum buffer_name name, attn_itype type, int64_t index,
                         int64_t x);

/* The buffers that the sides tell: cu_seqlens, seqused, block table. */
void problem_side_buffers(struct problem *p);

/* The buffer of a token mask, all ones. */
void problem_mask_buffer(struct problem *p, enum buffer_name name);

/* Index in its buffer of element 0 of a head of token `t` of sequence b. */
int64_t tensor_at(const struct tensor *t, const struct side *s, int64_t b, int64_t token,
                  int64_t head);

/* One past the last element that the tensor addresses. */
int64_t tensor_extent(const struct tensor *t, const struct side *s, int64_t batch);

/* Index in its buffer of a place in a tensor over scores. */
int64_t plane_at(const struct plane *t, int64_t b, int64_t h, int64_t i, int64_t j);

/* Rows that follow each other in a tensor: of each sequence (padded), page, or all (packed). */
int64_t side_rows(const struct side *s);

/* The extent of the side in tensors over scores. */
int64_t side_span(const struct side *s, int64_t batch);

/* The side as arrays see it that have an entry per token but no pages. */
struct side side_unpaged(const struct side *s);

/* Index in an array with an entry per token, rows of sequences `stride` apart, and its size. */
int64_t token_at(const struct side *s, int64_t b, int64_t t, int64_t stride);
int64_t token_count(const struct side *s, int64_t batch, int64_t stride);

/* The mask of query rows is in this buffer. */
enum buffer_name query_mask_buffer(const struct problem *p);

/* The bias of sequence b, or its gradient, as a tensor in which b counts as 0. */
struct plane problem_bias(const struct problem *p, int64_t b);
struct plane problem_dbias(const struct problem *p, int64_t b);

/* dbias without a layout: [B][Hq][nq][nk] of the longest sequences, without the axes over which it
 * is summed. *count: its elements. */
struct plane problem_dbias_dense(const struct problem *p, int64_t *count);

/* The rules and shape of sequence b; q, kt and v are left null. */
struct truth_seq problem_rules(const struct problem *p, int64_t b);

/* Gives every element that the call reads or writes its role. */
void problem_roles(struct problem *p);

/* The call, its arrays at data[BUFFERS]; without probs_fn. */
attn_desc problem_desc(const struct problem *p, unsigned char *const *data);

/* The problem in one line, without a newline. */
void problem_print(const struct problem *p, char *line, size_t size);

#endif
