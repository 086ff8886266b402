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
    ATTN_INVALID_LENGTHS,    /* cu_seqlens, seqused or max_seqlen contradict each other */
    ATTN_INVALID_INDEX,      /* a row index or block table entry outside its tensor */
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
    const char *isa;      /* best CPU instruction set to use, by name ("scalar", "avx2", "avx512");
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

/* CPU instruction sets compiled into the library, slowest first: the name of the n-th, or null past
 * the end. *usable (may be null) tells whether this machine can run it. */
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
 * batch_stride is not looked at in packed tensors; in paged ones it goes from page to page. */
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

/* A tensor over (sequence, head, query, key), [B, Hq, Sq, Sk]. Strides count elements, are not
 * negative and are taken as they are: 0 repeats along that axis. */
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

/* An array of integers, contiguous. */
typedef struct attn_index {
    const void *data;
    attn_itype type;
} attn_index;

/* Bytes per token, [B, S] padded or [T] packed: non-zero = attend. */
typedef struct attn_token_mask {
    const uint8_t *data;
    int64_t batch_stride; /* padded: bytes from sequence to sequence; 0 = S */
} attn_token_mask;

/* How the tokens of one side, queries or keys with values, lie in memory. */
typedef struct attn_side {
    attn_layout layout;
    int64_t seqlen;        /* padded: S; otherwise 0, or a value that is not used */
    int64_t tokens;        /* packed: T, the rows of the tensors; at least cu_seqlens[B] */
    attn_index cu_seqlens; /* packed: B + 1 offsets, the first 0, never decreasing */
    attn_index seqused;    /* B lengths: only the first so many tokens of each sequence take part,
                              0 up to the room it has. May be null, but not when paged */
    int64_t max_seqlen;    /* packed, paged: an upper bound of the lengths; 0 = computed */
    int64_t pages;         /* paged: pages in the tensors */
    int64_t page_size;     /* paged: tokens in a page, at least 1 */
    attn_index block_table; /* paged: [B, table_stride], page numbers of each sequence in order */
    int64_t table_stride;  /* paged: entries of the table per sequence */
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
    double softcap;         /* c > 0: s = c tanh(s / c) */
    attn_score_input bias;  /* added to the scores; q's type or f32; -inf hides the key */
    attn_index bias_offset; /* B + 1 offsets in elements, the last one the end: the bias of each
                               sequence lies at its own, [Hq, nq, nk] contiguous with the lengths
                               of that sequence; bias.batch_stride is not looked at, head_stride
                               ATTN_BROADCAST means one [nq, nk] for all heads */
    attn_input alibi;       /* slopes, f32 (f64 for f64): s -= slope |i + nk - nq - j|; head_stride
                               and batch_stride; contiguous means one per head, [Hq] */
    attn_input sink;        /* [Hq], f32 (f64 for f64): exp(sink) joins the denominator only */

    /* Visibility: a key is attended if everything given agrees. */
    attn_align align;          /* needed by causal and window */
    int32_t causal;            /* 1: key position <= query position */
    int32_t window;            /* 1: within window_left before and window_right after it */
    int64_t window_left, window_right; /* both ends included; -1 = unlimited */
    attn_token_mask key_mask;   /* hides keys; changes no length and no index */
    attn_token_mask query_mask; /* rows with 0 are empty: out 0, LSE -inf */
    attn_score_input mask;      /* ATTN_BOOL */
    attn_index query_docs, key_docs; /* document of each token ([B, S] or [T]); others' are hidden */
    attn_index prefix;          /* B lengths, with causal: keys before it are not hidden by it */
    const uint8_t *block_mask;  /* [ceil(Sq / block_q), ceil(Sk / block_k)]; 0 = never read */
    int64_t block_q, block_k;

    /* Dropout on the probabilities: Philox4x32-10 keyed by seed. */
    double dropout; /* 0 to 1: the probability of dropping */
    uint64_t dropout_seed;
    uint32_t dropout_offset;
    int64_t first_sequence; /* counts as the number of sequence 0 */

    /* Further outputs. */
    attn_score_output probs; /* [B, Hq, Sq, Sk], q's type; all strides 0 = contiguous */
    attn_probs_fn probs_fn;  /* called with every tile of the probabilities */
    void *probs_user;
    attn_output key_sums;    /* column sums of the probabilities, f32 (f64 for f64):
                                contiguous means [B, Hq, Sk] or [Hq, Tk] */

    /* Gradients: of a loss, given by its gradients with respect to out and LSE. */
    attn_input dout;
    attn_input dlse;       /* optional */
    attn_output dq, dk, dv;
    attn_score_output dbias; /* bias' type and broadcast */
    attn_output dsink;

    /* Scratch memory. Null: taken from the context's allocator for the time of the call. */
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

typedef enum attn_pass { ATTN_PASS_FORWARD = 0, ATTN_PASS_BACKWARD = 1 } attn_pass;

/**
 * Gradients from dout (and dlse): dq, dk, dv, and dbias and dsink where given. Reads q, k, v, out
 * and lse of the forward call.
 *
 * @return as attn_forward().
 */
ATTN_API attn_status attn_backward(attn_context *context, const attn_desc *desc);

/* *bytes: the workspace that the call would use. The tensors that every call has may be null; what
 * is optional counts as used if its pointer is not null; arrays of lengths are read. The answer
 * holds for any contents of the tensors. */
ATTN_API attn_status attn_workspace_size(attn_context *context, const attn_desc *desc,
                                         attn_pass pass, size_t *bytes);

/* What each backend says of a call. */
typedef struct attn_candidate {
    attn_backend backend;
    attn_status status;   /* ATTN_OK: it would serve the call */
    size_t workspace;     /* then: bytes */
    char kernel[64];      /* then: its kernel, as "prefill f32 avx512" */
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
 * (f64 for f64), may be null. max_seqlen_q and max_seqlen_k may be 0. Dropout draws from `seed`. */
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

/* What a packed batch made of a mask looks like. The caller brings the arrays; null = not wanted. */
typedef struct attn_packing {
    int64_t *indices;    /* out, up to B * S: where each packed row stands in [B * S], ascending */
    int32_t *cu_seqlens; /* out, B + 1 */
    int32_t *lengths;    /* out, B */
    int64_t total;       /* out: packed rows */
    int64_t max_seqlen;  /* out: the longest length */
} attn_packing;

/* From a mask [B, S] (contiguous bytes, non-zero = keep): order is kept, holes are squeezed out, a
 * row of zeros has length 0. ATTN_INVALID_OVERFLOW where the total does not fit cu_seqlens. */
ATTN_API attn_status attn_packing_from_mask(attn_context *context, int64_t batch, int64_t seqlen,
                                            const uint8_t *mask, attn_packing *packing);

/* From lengths [B], each 0 to seqlen: the first lengths[b] tokens of sequence b are kept.
 * packing->lengths may be null. */
ATTN_API attn_status attn_packing_from_lengths(attn_context *context, int64_t batch,
                                               int64_t seqlen, const int32_t *lengths,
                                               attn_packing *packing);

/* The packing of the mask, and x [B, S, width] gathered by it into packed [total, width]; both
 * contiguous, of element type dtype. `packed` has room for B * S rows, or for the total that
 * attn_packing_from_mask() told. */
ATTN_API attn_status attn_unpad(attn_context *context, attn_dtype dtype, int64_t batch,
                                int64_t seqlen, int64_t width, const void *x, const uint8_t *mask,
                                void *packed, attn_packing *packing);

/* The inverse: packed [total, width] to x [rows, width] (rows = B * S), the other rows 0. Each of
 * the `total` indices is below rows and stands there once; of a repeat that is not noticed the last
 * one's row is left. */
ATTN_API attn_status attn_pad(attn_context *context, attn_dtype dtype, int64_t rows, int64_t width,
                              const void *packed, const int64_t *indices, int64_t total, void *x);

/* out[n] = x[indices[n]]: rows of x [rows, width], n below count; an index may repeat. */
ATTN_API attn_status attn_gather(attn_context *context, attn_dtype dtype, int64_t rows,
                                 int64_t width, const void *x, const int64_t *indices,
                                 int64_t count, void *out);

/* positions [cu_seqlens[B]]: the index of each packed row inside its sequence, plus offsets[b]
 * (may be null: 0). */
ATTN_API attn_status attn_position_ids(attn_context *context, int64_t batch,
                                       const int32_t *cu_seqlens, const int32_t *offsets,
                                       int64_t *positions);

#ifdef __cplusplus
}
#endif

#endif
