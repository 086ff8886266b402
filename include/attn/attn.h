/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libattn: exact attention, out = softmax(scale q k^T + mask) v, for batches of sequences of any
 * lengths, padded or packed, on the CPU and on GPUs, by one call.
 *
 * Everything a caller sees is in this file. What is computed, edge case by edge case, is told in
 * docs/semantics.md; the comments here say what each field means and which values it takes.
 *
 * Words: B sequences in a batch; sequence b has nq queries and nk keys, either may be 0. Hq query
 * heads share Hkv key/value heads: query head h reads head h / (Hq / Hkv). D is the size of a query
 * or key head, Dv of a value head. Padded tensors are [B, S, H, D]; packed ones are [T, H, D], the
 * sequences end to end, sequence b in rows cu_seqlens[b] to cu_seqlens[b + 1] - 1.
 */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

/* ------------------------------------------------------------------------------------------------
 * Answers
 * --------------------------------------------------------------------------------------------- */

/* Every call answers with one of these; attn_last_message() names the field and its value.
 * Invalid (100 and up): wrong for any backend; nothing was written. Unsupported: sound arguments
 * that no chosen backend serves; nothing was written. After no memory or a device error the
 * contents of the outputs are undefined. */
typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_UNSUPPORTED = 1,  /* sound, but not offered here */
    ATTN_NO_BACKEND = 2,   /* the backend asked for is not built in */
    ATTN_NO_DEVICE = 3,    /* it is built in, but there is no device for it */
    ATTN_NO_MEMORY = 4,    /* the allocator had no room */
    ATTN_DEVICE_ERROR = 5, /* the device's driver reported an error */

    ATTN_INVALID_SIZE = 100, /* a structure's size is none that any header had */
    ATTN_INVALID_NULL,       /* a pointer that is needed is null */
    ATTN_INVALID_ENUM,       /* a value outside its enumeration, or a flag that is not 0 or 1 */
    ATTN_INVALID_DTYPE,      /* an element type that does not fit the other tensors */
    ATTN_INVALID_SHAPE,      /* a negative extent, a head size of 0 */
    ATTN_INVALID_HEADS,      /* Hq is not a multiple of Hkv */
    ATTN_INVALID_STRIDE,     /* a negative stride */
    ATTN_INVALID_LENGTHS,    /* cu_seqlens, seqused, prefix or max_seqlen cannot be lengths */
    ATTN_INVALID_INDEX,      /* a row index, page or offset outside its tensor */
    ATTN_INVALID_VALUE,      /* a number outside its range */
    ATTN_INVALID_CONFLICT,   /* two fields that exclude each other, or one lacking its companion */
    ATTN_INVALID_OVERLAP,    /* an output shares an element with an output or an input */
    ATTN_INVALID_OVERFLOW,   /* a size does not fit in 63 bits */
    ATTN_INVALID_WORKSPACE   /* the caller's workspace is too small or misaligned */
} attn_status;

static inline int attn_status_is_invalid(attn_status s) { return (int)s >= (int)ATTN_INVALID_SIZE; }

/* The status' own name, "ATTN_INVALID_HEADS"; never null. */
ATTN_API const char *attn_status_name(attn_status status);

/* "0.1.0", of the library that is loaded; version.h tells that of the header. */
ATTN_API const char *attn_version(void);

/* ------------------------------------------------------------------------------------------------
 * Contexts
 * --------------------------------------------------------------------------------------------- */

typedef enum attn_backend {
    ATTN_BACKEND_DEFAULT = 0, /* environment variable ATTN_BACKEND, else automatic */
    ATTN_BACKEND_AUTO = 1,    /* device pointers: cuda; host pointers: cpu, else the next one */
    ATTN_BACKEND_CPU = 2,     /* tiled online softmax, in memory proportional to the tokens */
    ATTN_BACKEND_EAGER = 3,   /* GEMM, softmax, GEMM on a BLAS; the reference to switch to */
    ATTN_BACKEND_CUDA = 4     /* NVIDIA GPUs */
} attn_backend;

/* "default", "auto", "cpu", "eager" or "cuda"; null for any other value. */
ATTN_API const char *attn_backend_name(attn_backend backend);

/* Memory for workspaces. alloc returns `bytes` bytes at an address that is a multiple of `align` (a
 * power of two, up to 4096), or null; release gets what alloc returned, with the same size. Both
 * are called by the thread that makes the call. */
typedef struct attn_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*release)(void *user, void *data, size_t bytes);
    void *user;
} attn_allocator;

/* How a context works; start from attn_options_init(). A field left at zero takes its default. */
typedef struct attn_options {
    size_t size;          /* sizeof(attn_options), set by attn_options_init() */
    attn_backend backend; /* one that is named serves or refuses; only automatic tries others */
    int32_t threads;      /* most threads a call may use, up to 1024; default: OpenMP's choice */
    const char *isa;      /* best CPU instruction set to use, by name (see attn_isa_name());
                             default: environment variable ATTN_ISA, else the machine's best */
    void *stream;         /* cuda: the cudaStream_t to work on; default: the default stream */
    attn_allocator allocator; /* default: the C library's */
} attn_options;

static inline attn_options attn_options_init(void)
{
    attn_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    return o;
}

/* A context holds the choices above and the last message. It serves one call at a time; several
 * threads use several contexts. Each call also accepts a null context: the defaults, with the
 * environment variables read at the call and the message kept per thread. */
typedef struct attn_context attn_context;

/* *context is a new context, to be released by attn_context_destroy(); null on failure.
 * options may be null. */
ATTN_API attn_status attn_context_create(attn_context **context, const attn_options *options);
ATTN_API void attn_context_destroy(attn_context *context); /* null is allowed */

/* Why the last call on this context did not return ATTN_OK, in one line of English; "" after a
 * success. Valid until the next call on the context (null: on this thread). Never null. */
ATTN_API const char *attn_last_message(const attn_context *context);

/* CPU instruction sets compiled into the library, slowest first, as they are on this machine: the
 * name of the n-th, or null past the end. *usable (may be null) tells whether this machine can run
 * it. */
ATTN_API const char *attn_isa_name(int32_t n, int32_t *usable);

/* ------------------------------------------------------------------------------------------------
 * Describing a batch
 * --------------------------------------------------------------------------------------------- */

typedef enum attn_dtype {
    ATTN_F32 = 0,
    ATTN_F64 = 1,
    ATTN_F16 = 2,  /* IEEE binary16 */
    ATTN_BF16 = 3, /* upper half of an f32 */
    ATTN_BOOL = 4  /* bytes, non-zero = true; masks only */
} attn_dtype;

typedef enum attn_itype { ATTN_I32 = 0, ATTN_I64 = 1 } attn_itype;

typedef enum attn_layout {
    ATTN_PADDED = 0, /* [B, S, H, D] */
    ATTN_PACKED = 1, /* [T, H, D] with cu_seqlens */
    ATTN_PAGED = 2   /* keys and values only: [pages, page_size, H, D] with a block table */
} attn_layout;

/* Which query lines up with which key, for causal masks and windows. Query i has the position
 * i + offset among the keys. There is no default: what asks for an alignment must name it. */
typedef enum attn_align {
    ATTN_ALIGN_NONE = 0,
    ATTN_TOP_LEFT = 1,    /* offset 0: the first query lines up with the first key */
    ATTN_BOTTOM_RIGHT = 2 /* offset nk - nq: the last query lines up with the last key */
} attn_align;

/* A stride that is 0 even where all strides of a tensor are. */
#define ATTN_BROADCAST (-1)

/* Tensors of the caller's: never owned by the library, aligned to their element type only.
 * Strides count elements and are not negative; the elements of a head lie side by side. All three
 * strides 0 means contiguous in the layout of its side ([B, S, H, D], [T, H, D], or the layout
 * named beside the field); otherwise each is taken as it is, and 0 repeats the same data along
 * that axis (inputs only; to repeat along every axis write one of them as ATTN_BROADCAST).
 * batch_stride is not looked at in packed tensors; in paged ones it goes from page to page. How
 * large the stride of an axis of one element is does not matter. */
typedef struct attn_input {
    const void *data;
    attn_dtype dtype;
    int64_t batch_stride, token_stride, head_stride;
} attn_input;

typedef struct attn_output {
    void *data;
    attn_dtype dtype;
    int64_t batch_stride, token_stride, head_stride;
} attn_output;

/* A tensor over (sequence, query head, query, key), [B, Hq, Sq, Sk]. Of packed and paged sides Sq
 * and Sk are max_seqlen, or the longest length where that is 0; what lies past a sequence's own
 * lengths is not read. Strides count elements, are not negative and are taken as they are: 0
 * repeats along that axis, all four 0 are one element for everything. */
typedef struct attn_score_input {
    const void *data;
    attn_dtype dtype;
    int64_t batch_stride, head_stride, query_stride, key_stride;
} attn_score_input;

typedef struct attn_score_output {
    void *data;
    attn_dtype dtype;
    int64_t batch_stride, head_stride, query_stride, key_stride;
} attn_score_output;

/* An array of integers, contiguous, in host memory or where the tensors lie. */
typedef struct attn_index {
    const void *data;
    attn_itype type;
} attn_index;

/* Bytes per token, [B, S] padded or paged, [T] packed: non-zero = attend. When paged S is
 * max_seqlen, or the longest length where that is 0. */
typedef struct attn_token_mask {
    const uint8_t *data;
    int64_t batch_stride; /* bytes from sequence to sequence; 0 = S, ATTN_BROADCAST = one row of
                             bytes for all; not looked at when packed */
} attn_token_mask;

/* How the tokens of one side, queries or keys with values, lie in memory. */
typedef struct attn_side {
    attn_layout layout;
    int64_t seqlen;        /* padded: S; otherwise 0, or a value that is not used */
    int64_t tokens;        /* packed: T, the rows of the tensors; at least cu_seqlens[B] */
    attn_index cu_seqlens; /* packed: B + 1 offsets, the first 0, never decreasing */
    attn_index seqused;    /* B lengths: only the first so many tokens of each sequence take part,
                              0 up to the room it has. May be null, but not when paged */
    int64_t max_seqlen;    /* an upper bound of the lengths, which changes no result; 0 = computed,
                              and where packed or paged that needs them in memory that the host
                              can read */
    int64_t pages;         /* paged: pages in the tensors */
    int64_t page_size;     /* paged: tokens in a page, at least 1 */
    attn_index block_table; /* paged: [B, max_pages], numbers of pages, 0 to pages - 1: token t of
                               sequence b is row t % page_size of page [b, t / page_size]. Entries
                               past the used length may hold anything; sequences may share pages */
    int64_t max_pages;     /* paged: entries of the table per sequence; a sequence has room for
                              max_pages * page_size tokens */
} attn_side;

/* A tile of probabilities: those of queries i0 .. i0 + ni - 1 and keys j0 .. j0 + nj - 1 of one
 * sequence and query head, p[i * stride + j], in the computing type (f64 for f64, else f32). May be
 * called by several threads at once. */
typedef void (*attn_probs_fn)(void *user, int64_t sequence, int64_t head, int64_t i0, int64_t ni,
                              int64_t j0, int64_t nj, const void *p, int64_t stride);

/* One attention call. Start from attn_desc_init(); a field left at zero is off, or takes the
 * default beside it. What a backend does not offer is refused by name, never ignored. */
typedef struct attn_desc {
    size_t size; /* sizeof(attn_desc), set by attn_desc_init() */

    /* Shape. */
    int64_t batch;      /* B */
    int64_t heads_q;    /* Hq */
    int64_t heads_kv;   /* Hkv; 0 = Hq */
    int64_t head_dim;   /* D, at least 1 */
    int64_t head_dim_v; /* Dv; 0 = D */
    attn_side query, key; /* `key` also describes the values; each side chooses its own layout */

    /* Tensors. q, k, v and out have one element type. */
    attn_input q, k, v;
    attn_output out; /* [B, Sq, Hq, Dv] or [Tq, Hq, Dv]; every row is written */
    attn_output lse; /* optional: natural log of the softmax denominator, f32 (f64 for f64).
                        Contiguous means [B, Hq, Sq] padded and [Hq, Tq] packed */

    /* Scores: s = scale (q . k), then softcap, bias, ALiBi. */
    double scale;           /* 0 = 1 / sqrt(D); any other finite value is meant as it is */
    double softcap;         /* c > 0: s = c tanh(s / c); finite, 0 = off */
    attn_score_input bias;  /* s += bias[b, h, i, j]; q's type or f32; -inf hides the key */
    attn_index bias_offset; /* B + 1 offsets in elements, from 0 on: the bias of sequence b lies at
                               bias_offset[b], [Hq, nq, nk] contiguous with the lengths of that
                               sequence, and ends at bias_offset[b + 1] or before. The strides of
                               bias stay 0; its head_stride ATTN_BROADCAST means one [nq, nk] for
                               all heads */
    int64_t bias_elements;  /* with bias_offset: elements that bias has in all; no sequence's part
                               goes beyond. 0 = bias_offset[B], which needs it in memory that the
                               host can read */
    attn_input alibi;       /* slopes, f32 (f64 for f64): s -= slope |i + nk - nq - j|. [Hq], or
                               [B, Hq] with strides; token_stride stays 0 */
    attn_input sink;        /* [Hq], f32 (f64 for f64): exp(sink) joins the denominator only; -inf
                               = none. Only head_stride is its own */

    /* Visibility: a key is attended if everything given agrees. */
    attn_align align;          /* needed by causal and window */
    int32_t causal;            /* 1: key position <= query position */
    int32_t window;            /* 1: within window_left before and window_right after it */
    int64_t window_left, window_right; /* both ends included; -1 = unlimited */
    attn_token_mask key_mask;   /* hides keys; changes no length and no index */
    attn_token_mask query_mask; /* queries with 0 see nothing: out 0, LSE -inf (the sink's) */
    attn_score_input mask;      /* ATTN_BOOL, non-zero = attend */
    attn_index query_docs, key_docs; /* the document of each token, any numbers, [B, S] padded or
                                   paged, [T] packed: keys of other documents are hidden */
    attn_index prefix;          /* B lengths, needs causal: it hides no key before prefix[b]. 0 or
                                   more; more than nk is nk */
    attn_score_input block_mask; /* ATTN_BOOL over (sequence, query head, query block, key block),
                                   [B, Hq, ceil(Sq / block_q), ceil(Sk / block_k)]: 0 hides the
                                   keys of a block. One map for all sequences and heads: {data,
                                   ATTN_BOOL, 0, 0, its columns, 1} */
    int64_t block_q, block_k;   /* queries and keys to a block, at least 1 with block_mask */

    /* Dropout on the probabilities: Philox4x32-10 with the seed as key and the counter (j / 4, i,
     * (first_sequence + b) Hq + h, dropout_offset), key j taking draw j % 4. Kept if the draw is
     * at least round(dropout 2^32), and divided by 1 - dropout. Unsupported where a word of the
     * counter would not fit in 32 bits. */
    double dropout;          /* 0 to 1: the probability of dropping */
    uint64_t dropout_seed;
    uint32_t dropout_offset; /* another one gives other draws: of a layer, of a step */
    int64_t first_sequence;  /* 0 or more: counts as the number of sequence 0 */

    /* Further outputs. */
    attn_score_output probs; /* [B, Hq, Sq, Sk], q's type; all strides 0 = contiguous. 0 for keys
                                that are not seen and past a sequence's lengths */
    attn_probs_fn probs_fn;  /* called with tiles of the probabilities, no two of which overlap;
                                what lies in none of them is 0 */
    void *probs_user;
    attn_output key_sums;    /* sums of the probabilities over the queries of the sequence, f32 (f64
                                for f64), by key and query head: contiguous means [B, Hq, Sk]
                                padded and paged, [Hq, Tk] packed. Every element is written, 0 for
                                keys that take no part */

    /* Gradients: of a loss, given by its gradients with respect to out and LSE. */
    attn_input dout;
    attn_input dlse;       /* optional */
    attn_output dq, dk, dv;
    attn_score_output dbias; /* bias' type; summed over axes whose stride is 0. Every element is
                                written. With bias_offset it lies as bias does, its strides
                                staying as those of bias */
    attn_output dsink;       /* [Hq], as sink */

    /* Scratch memory, where the tensors lie. Null: taken for the time of the call, from the
     * context's allocator, or from the device's where tensors lie on one. */
    void *workspace; /* aligned to 64 bytes */
    size_t workspace_bytes;
} attn_desc;

static inline attn_desc attn_desc_init(void)
{
    attn_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* ------------------------------------------------------------------------------------------------
 * Computing
 * --------------------------------------------------------------------------------------------- */

/**
 * out = softmax(scale q k^T + mask) v for every sequence and head; LSE if asked for.
 *
 * A query that sees no key gives out = 0 and LSE = -inf. What stands at places that nobody may see
 * (masked keys and values, rows past the used lengths) changes no bit of the result, NaN included.
 * Rows of the outputs that belong to no query are written: 0, LSE -inf. The caller's floating-point
 * environment is neither used nor changed.
 *
 * @return ATTN_OK; an ATTN_INVALID_ status, ATTN_UNSUPPORTED, ATTN_NO_BACKEND or ATTN_NO_DEVICE
 *         with the outputs untouched; ATTN_NO_MEMORY; ATTN_DEVICE_ERROR.
 */
ATTN_API attn_status attn_forward(attn_context *context, const attn_desc *desc);

/**
 * What dropout keeps: *keep, ATTN_BOOL [B, Hq, Sq, Sk] (all strides 0 = contiguous), gets 1 where a
 * call of this descriptor keeps the probability of a query and key, 0 where it drops it. Every
 * element is written, those past a sequence's lengths with 0. Masks are not looked at: what is kept
 * may still be hidden. Only shape, lengths and dropout matter; the descriptor's tensors may be
 * null, and *keep shares no element with those that are not.
 *
 * @return ATTN_OK; an ATTN_INVALID_ status, or ATTN_UNSUPPORTED for counters of more than 32 bits
 *         per word, with *keep untouched.
 */
ATTN_API attn_status attn_dropout_mask(attn_context *context, const attn_desc *desc,
                                       const attn_score_output *keep);

typedef enum attn_pass { ATTN_PASS_FORWARD = 0, ATTN_PASS_BACKWARD = 1 } attn_pass;

/**
 * Gradients of a loss from dout and, where given, dlse, its gradients with respect to out and LSE:
 * dq, dk, dv, and dbias and dsink where given. The descriptor is that of the forward call, with out
 * and lse now inputs as the call wrote them; its further outputs are not looked at. No tensor of
 * the size of the scores is made: they are computed again tile by tile, a probability being
 * exp(score - LSE).
 *
 *     dscore_ij = p_ij (kept_ij (dout_i . v_j) - dout_i . out_i + dlse_i)
 *     dv_j = sum_i p_ij kept_ij dout_i        kept: 0, or 1 / (1 - dropout); 1 without dropout
 *     dq_i = scale sum_j dscore_ij k_j, dk_j = scale sum_i dscore_ij q_i
 *
 * (dscore times 1 - (s / softcap)^2 for dq and dk where there is a softcap.) What nobody sees gets
 * 0, as do rows of dq, dk and dv that belong to no token. Paged keys are not offered.
 *
 * @return as attn_forward().
 */
ATTN_API attn_status attn_backward(attn_context *context, const attn_desc *desc);

/* *bytes: the workspace that the call would use. The tensors that every call has may be null; what
 * is optional counts as used if its pointer is not null; arrays of lengths, prefix among them, are
 * read. The answer holds for any contents of the tensors. */
ATTN_API attn_status attn_workspace_size(attn_context *context, const attn_desc *desc,
                                         attn_pass pass, size_t *bytes);

/**
 * What was wrong with lengths, tables and offsets in a device's memory. A call cannot look at those
 * before its kernels do: these stay within the tensors whatever stands there, and note in the
 * workspace what does not belong there. This call waits for the context's stream and tells the
 * first of it, by field and entry, as the latest call that worked in desc->workspace found it; that
 * has to be the caller's workspace, since the library's own is gone with the call. desc and pass
 * are those of that call. Outputs of a call with wrong lengths are written all the same; what they
 * hold is undefined.
 *
 * Where the host can read all of desc's arrays there is nothing to wait for: what is wrong with
 * them was the answer of the call itself, and is that of this one. A call without a row of queries
 * looks at nothing, and has nothing to tell.
 *
 * @return ATTN_OK; ATTN_INVALID_LENGTHS or ATTN_INVALID_INDEX, the message naming field and entry;
 *         ATTN_INVALID_NULL without a workspace; ATTN_DEVICE_ERROR, also of what came before on the
 *         stream; otherwise as the call.
 */
ATTN_API attn_status attn_workspace_status(attn_context *context, const attn_desc *desc,
                                           attn_pass pass);

/* What each backend says of a call. */
typedef struct attn_candidate {
    attn_backend backend;
    attn_status status;   /* ATTN_OK: it would serve the call */
    size_t workspace;     /* then: bytes */
    char kernel[64];      /* then: its kernel, as "tiled f32 avx512" */
    char reason[192];     /* else: why not */
} attn_candidate;

typedef struct attn_explanation {
    size_t size;          /* sizeof(attn_explanation), set by attn_explanation_init() */
    int32_t chosen;       /* index of the candidate that would serve the call, or -1 */
    int32_t count;        /* candidates, one for every backend this header names */
    attn_candidate candidates[8];
} attn_explanation;

static inline attn_explanation attn_explanation_init(void)
{
    attn_explanation e;
    memset(&e, 0, sizeof e);
    e.size = sizeof e;
    return e;
}

/* Which backend and kernel would serve the call, and for each other one why not. Computes and
 * writes nothing else. Returns ATTN_OK whenever the arguments are sound, even if nobody serves. */
ATTN_API attn_status attn_explain(attn_context *context, const attn_desc *desc, attn_pass pass,
                                  attn_explanation *explanation);

/* ------------------------------------------------------------------------------------------------
 * Familiar forms
 * --------------------------------------------------------------------------------------------- */

/* Every token sees every token: q, k, v, out [B, S, H * D], contiguous. mask (may be null) is a
 * key padding mask [B, S], 1 = attend; rows of padded queries are computed all the same. */
ATTN_API attn_status attn_bidirectional(attn_context *context, attn_dtype dtype, int64_t batch,
                                        int64_t seqlen, int64_t heads, int64_t head_dim,
                                        const void *q, const void *k, const void *v,
                                        const uint8_t *mask, void *out);

/* The same, a token seeing itself and those before it. */
ATTN_API attn_status attn_causal(attn_context *context, attn_dtype dtype, int64_t batch,
                                 int64_t seqlen, int64_t heads, int64_t head_dim, const void *q,
                                 const void *k, const void *v, const uint8_t *mask, void *out);

/* The arguments of PyTorch's scaled_dot_product_attention. query [B, Hq, Sq, D], key
 * [B, Hkv, Sk, D], value [B, Hkv, Sk, Dv], out [B, Hq, Sq, Dv], contiguous. attn_mask may be null;
 * ATTN_BOOL: true = attend; a real type: added to the scores. It excludes is_causal, which is
 * top-left. scale 0 = 1 / sqrt(D). Hq != Hkv needs enable_gqa. Dropout draws from `seed`. */
ATTN_API attn_status attn_sdpa(attn_context *context, attn_dtype dtype, int64_t batch,
                               int64_t heads_q, int64_t heads_kv, int64_t seqlen_q,
                               int64_t seqlen_k, int64_t head_dim, int64_t head_dim_v,
                               const void *query, const void *key, const void *value,
                               const attn_score_input *attn_mask, double dropout_p, uint64_t seed,
                               int32_t is_causal, double scale, int32_t enable_gqa, void *out);

/* The arguments of flash_attn_varlen_func. q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], out
 * [Tq, Hq, Dv], packed and contiguous; cu_seqlens of B + 1 entries. causal and the window are
 * bottom-right; window -1 = unlimited on that side. lse [Hq, Tq] and alibi_slopes [Hq], both f32
 * (f64 for f64), may be null. max_seqlen_q and max_seqlen_k may be 0 where the host can read
 * cu_seqlens. Dropout draws from `seed`. */
ATTN_API attn_status attn_varlen(attn_context *context, attn_dtype dtype, int64_t batch,
                                 int64_t total_q, int64_t total_k, int64_t heads_q,
                                 int64_t heads_kv, int64_t head_dim, int64_t head_dim_v,
                                 const void *q, const void *k, const void *v,
                                 const int32_t *cu_seqlens_q, const int32_t *cu_seqlens_k,
                                 int64_t max_seqlen_q, int64_t max_seqlen_k, double dropout_p,
                                 uint64_t seed, double softmax_scale, int32_t causal,
                                 int64_t window_left, int64_t window_right, double softcap,
                                 const void *alibi_slopes, void *out, void *lse);

/* ------------------------------------------------------------------------------------------------
 * Batch helpers: from padded to packed and back, around a whole model
 * --------------------------------------------------------------------------------------------- */

/*
 * On a device. These functions, attn_rotary(), attn_cache_append() and attn_merge() work where
 * their tensors lie, on a device as well as on the host, whose results they repeat (to the last
 * digits where sines or exponentials are the device's own). There, work is put on the context's
 * stream, and nothing waits for it. Automatic choice and a context for ATTN_BACKEND_CUDA do so;
 * others take host memory only. Tensors in host memory are worked on there by any context.
 *
 * All arrays of a call lie in one memory. Those of numbers are aligned to their entries (rows that
 * are only copied may lie anywhere). Indices, lengths and offsets that are only read may lie
 * in the host's all the same; they are checked then, and not looked at after the call. Those
 * on the device cannot be checked: lengths are clamped, and what names no row is left out. Working
 * memory comes from the device's stream-ordered allocator. Arrays whose size only the device knows
 * are not null even where they turn out empty.
 */

/* What a packed batch made of a mask looks like. The caller brings the arrays; null = not
 * wanted. */
typedef struct attn_packing {
    int64_t *indices;    /* out, up to B * S: where each packed row stands in [B * S], ascending */
    int32_t *cu_seqlens; /* out, B + 1 */
    int32_t *lengths;    /* out, B */
    int64_t total;       /* out: packed rows; -1 where the mask or lengths are a device's, which the
                            call does not wait for: cu_seqlens[B] is that number then, and B * S a
                            bound of it */
    int64_t max_seqlen;  /* out: the longest length, or -1 likewise: then S is a bound of it */
} attn_packing;

/* From a mask [B, S] (contiguous bytes, non-zero = keep): order is kept, holes are squeezed out, a
 * row of zeros has length 0. ATTN_INVALID_OVERFLOW where the total does not fit cu_seqlens; with a
 * mask on a device ATTN_UNSUPPORTED where B * S does not. */
ATTN_API attn_status attn_packing_from_mask(attn_context *context, int64_t batch, int64_t seqlen,
                                            const uint8_t *mask, attn_packing *packing);

/* From lengths [B], each 0 to seqlen: the first lengths[b] tokens of sequence b are kept.
 * packing->lengths may be null. */
ATTN_API attn_status attn_packing_from_lengths(attn_context *context, int64_t batch,
                                               int64_t seqlen, const int32_t *lengths,
                                               attn_packing *packing);

/* The packing of the mask, and x [B, S, width] gathered by it into packed [total, width]; both
 * contiguous, of element type dtype. `packed` has room for B * S rows, or for the total that
 * attn_packing_from_mask() told, or its cu_seqlens[B]. Rows past the total are not written. */
ATTN_API attn_status attn_unpad(attn_context *context, attn_dtype dtype, int64_t batch,
                                int64_t seqlen, int64_t width, const void *x, const uint8_t *mask,
                                void *packed, attn_packing *packing);

/* The inverse: packed [total, width] to x [rows, width] (rows = B * S), the other rows 0. Each of
 * the `total` indices is below rows and stands there once; of a repeat that is not noticed the last
 * one's row is left. On a device an index that is none of the rows', such as -1, is left out: with
 * `total` = rows and indices that were -1 before attn_unpad() wrote them, nobody has to know the
 * total on the host.
 *
 * Each is the other's gradient: attn_pad() takes dpacked to dx, attn_gather() with the packing's
 * indices takes dx to dpacked, as attn_unpad() does where the mask is at hand. */
ATTN_API attn_status attn_pad(attn_context *context, attn_dtype dtype, int64_t rows, int64_t width,
                              const void *packed, const int64_t *indices, int64_t total, void *x);

/* out[n] = x[indices[n]]: rows of x [rows, width], n below count; an index may repeat. Indices on a
 * device that are none of the rows' give rows of 0. */
ATTN_API attn_status attn_gather(attn_context *context, attn_dtype dtype, int64_t rows,
                                 int64_t width, const void *x, const int64_t *indices,
                                 int64_t count, void *out);

/* Its gradient: dx [rows, width], each row the sum of those rows of dout [count, width] that were
 * gathered from it, 0 without any. The sum is taken in f32 (f64 for f64), in the order of the
 * indices, and rounded once: the same bits for any number of threads, and on a device. Works in
 * 8 (rows + count + 1) bytes of the context's allocator; on a device in 17 count and some.
 * ATTN_BOOL has no gradient. */
ATTN_API attn_status attn_gather_backward(attn_context *context, attn_dtype dtype, int64_t rows,
                                          int64_t width, const void *dout, const int64_t *indices,
                                          int64_t count, void *dx);

/* positions [cu_seqlens[B]]: the index of each packed row inside its sequence, plus offsets[b]
 * (may be null: 0). */
ATTN_API attn_status attn_position_ids(attn_context *context, int64_t batch,
                                       const int32_t *cu_seqlens, const int32_t *offsets,
                                       int64_t *positions);

/* ------------------------------------------------------------------------------------------------
 * Rotary position embedding
 * --------------------------------------------------------------------------------------------- */

typedef enum attn_pairing {
    ATTN_HALF_SPLIT = 0, /* element n turns with element n + dim / 2 */
    ATTN_INTERLEAVED = 1 /* element 2 n turns with element 2 n + 1 */
} attn_pairing;

/* How heads are turned: pair n of a token at position p, as the vector (first, second), by the
 * angle p * frequency[n] towards the second. */
typedef struct attn_rotation {
    int64_t dim;             /* the first so many elements of a head, an even number; 0 = all */
    attn_pairing pairing;
    double base;             /* frequency[n] = base^(-2 n / dim), at least 1; 0 = 10000 */
    const double *frequency; /* [dim / 2], host memory: these instead, for scaled embeddings */
} attn_rotation;

/* Start from attn_rotary_desc_init(). */
typedef struct attn_rotary_desc {
    size_t size; /* sizeof(attn_rotary_desc), set by attn_rotary_desc_init() */
    int64_t batch, heads, head_dim;
    attn_side tokens;     /* padded or packed; tokens past seqused are written as 0 */
    attn_input x;         /* [B, S, H, D] or [T, H, D] */
    attn_output out;      /* as x; may be x itself: same address, same strides */
    attn_index positions; /* of each token, [B, S] or [T]; null: offsets[b] + index in sequence */
    attn_index offsets;   /* [B], between -2^60 and 2^60; null: 0 */
    attn_rotation rotation;
    int32_t inverse;      /* 1: turned back; with dout for x that is the gradient, dx */
    void *report;         /* with lengths on a device: 8 bytes where the tensors lie, for
                             attn_rotary_status(); may be null */
} attn_rotary_desc;

static inline attn_rotary_desc attn_rotary_desc_init(void)
{
    attn_rotary_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* out = x with every head turned by its token's position; the elements past rotation.dim are
 * copied. Queries and keys that lie side by side are one call: heads = Hq + Hkv. */
ATTN_API attn_status attn_rotary(attn_context *context, const attn_rotary_desc *desc);

/* What was wrong with lengths in a device's memory, as attn_workspace_status() tells it: by what
 * the latest call that was given desc->report noted there. Where the host can read all lengths
 * there is nothing to tell. ATTN_INVALID_NULL without a report. */
ATTN_API attn_status attn_rotary_status(attn_context *context, const attn_rotary_desc *desc);

/* ------------------------------------------------------------------------------------------------
 * Merging partial results
 * --------------------------------------------------------------------------------------------- */

/* The results of attention over parts of the keys, for the same queries. Start from
 * attn_merge_desc_init(). Packed tensors are those of a batch of 1 with seqlen = T. */
typedef struct attn_merge_desc {
    size_t size; /* sizeof(attn_merge_desc), set by attn_merge_desc_init() */
    int64_t batch, seqlen, heads, head_dim; /* head_dim: of the values, Dv */
    int64_t parts;               /* at least 1 */
    const attn_input *part_out;  /* [parts] (host memory), each [B, S, H, Dv] */
    const attn_input *part_lse;  /* [parts], f32 (f64 for f64); contiguous means [B, H, S] */
    attn_output out;             /* may be one of the parts: same address, same strides */
    attn_output lse;             /* optional, as out */
} attn_merge_desc;

static inline attn_merge_desc attn_merge_desc_init(void)
{
    attn_merge_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* out and lse of attention over all the parts' keys together: the parts weighted by exp(LSE).
 * (0, -inf) is neutral, and what stands in the out of such a part does not matter. */
ATTN_API attn_status attn_merge(attn_context *context, const attn_merge_desc *desc);

/* ------------------------------------------------------------------------------------------------
 * KV cache
 * --------------------------------------------------------------------------------------------- */

/* New keys and values for a cache. Start from attn_append_desc_init(). */
typedef struct attn_append_desc {
    size_t size; /* sizeof(attn_append_desc), set by attn_append_desc_init() */
    int64_t batch;      /* B */
    int64_t heads_kv;   /* Hkv */
    int64_t head_dim;   /* D, at least 1 */
    int64_t head_dim_v; /* Dv; 0 = D */
    attn_side tokens;   /* the new ones, padded or packed; their lengths may be 0 */
    attn_side cache;    /* as attn_desc.key will have it, any layout; seqused: lengths before */
    attn_input k, v;    /* new keys and values, in the layout of `tokens` */
    attn_output k_cache, v_cache; /* in that of `cache`. v and v_cache both null: keys only */
    int32_t rotary;         /* 1: the keys are turned by their positions */
    attn_rotation rotation; /* how */
    attn_index positions;   /* of each new token, [B, S] or [T]; null: length before + index */
    void *lengths; /* out, [B], of cache.seqused's type, and may be that array: before + new; may be
                      null */
    void *report;  /* with lengths or a table on a device: 8 bytes where the tensors lie, for
                      attn_cache_append_status(); may be null */
} attn_append_desc;

static inline attn_append_desc attn_append_desc_init(void)
{
    attn_append_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* Writes the new tokens of every sequence behind those that the cache has of it; no other element
 * of the cache is touched. Attention over the cache then has `cache` for its key side, with
 * seqused = lengths. attn_rotary() with offsets = the lengths before turns the queries alike.
 *
 * A page that is written belongs to one sequence: two that would write to it are refused, as
 * ATTN_INVALID_OVERLAP; where only a device knows lengths or pages, what stands in it then is
 * undefined. New tokens without room, or whose page is none, are left out there. */
ATTN_API attn_status attn_cache_append(attn_context *context, const attn_append_desc *desc);

/* What was wrong with lengths and tables in a device's memory, as attn_rotary_status() tells it. */
ATTN_API attn_status attn_cache_append_status(attn_context *context, const attn_append_desc *desc);

#ifdef __cplusplus
}
#endif

#endif
