/* SPDX-License-Identifier: BSD-3-Clause */
/* Names of features and statuses. */
#include "problem.h"

const char *attn_version(void) { return ATTN_VERSION_STRING; }

const char *attn_dtype_name(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_F32: return "f32";
    case ATTN_F64: return "f64";
    case ATTN_F16: return "f16";
    case ATTN_BF16: return "bf16";
    case ATTN_BOOL: return "bool";
    }
    return "?";
}

const char *attn_feature_name(enum attn_feature feature)
{
    switch (feature) {
    case ATTN_USES_SOFTCAP: return "softcap";
    case ATTN_USES_BIAS: return "bias";
    case ATTN_USES_BIAS_OFFSET: return "bias_offset";
    case ATTN_USES_ALIBI: return "alibi";
    case ATTN_USES_SINK: return "sink";
    case ATTN_USES_CAUSAL: return "causal";
    case ATTN_USES_WINDOW: return "window";
    case ATTN_USES_KEY_MASK: return "key_mask";
    case ATTN_USES_QUERY_MASK: return "query_mask";
    case ATTN_USES_MASK: return "mask";
    case ATTN_USES_DOCS: return "query_docs";
    case ATTN_USES_PREFIX: return "prefix";
    case ATTN_USES_BLOCK_MASK: return "block_mask";
    case ATTN_USES_DROPOUT: return "dropout";
    case ATTN_USES_LSE: return "lse";
    case ATTN_USES_PROBS: return "probs";
    case ATTN_USES_PROBS_FN: return "probs_fn";
    case ATTN_USES_KEY_SUMS: return "key_sums";
    case ATTN_USES_SEQUSED: return "seqused";
    case ATTN_USES_PACKED: return "cu_seqlens";
    case ATTN_USES_PAGED: return "block_table";
    case ATTN_USES_GQA: return "heads_kv";
    case ATTN_USES_BACKWARD: return "dout";
    case ATTN_USES_DLSE: return "dlse";
    case ATTN_USES_DBIAS: return "dbias";
    case ATTN_USES_DSINK: return "dsink";
    case ATTN_FEATURES: break;
    }
    return "?";
}

const char *attn_status_name(attn_status status)
{
    switch (status) {
    case ATTN_OK: return "ATTN_OK";
    case ATTN_UNSUPPORTED: return "ATTN_UNSUPPORTED";
    case ATTN_NO_BACKEND: return "ATTN_NO_BACKEND";
    case ATTN_NO_DEVICE: return "ATTN_NO_DEVICE";
    case ATTN_NO_MEMORY: return "ATTN_NO_MEMORY";
    case ATTN_DEVICE_ERROR: return "ATTN_DEVICE_ERROR";
    case ATTN_INVALID_SIZE: return "ATTN_INVALID_SIZE";
    case ATTN_INVALID_NULL: return "ATTN_INVALID_NULL";
    case ATTN_INVALID_ENUM: return "ATTN_INVALID_ENUM";
    case ATTN_INVALID_DTYPE: return "ATTN_INVALID_DTYPE";
    case ATTN_INVALID_SHAPE: return "ATTN_INVALID_SHAPE";
    case ATTN_INVALID_HEADS: return "ATTN_INVALID_HEADS";
    case ATTN_INVALID_STRIDE: return "ATTN_INVALID_STRIDE";
    case ATTN_INVALID_LENGTHS: return "ATTN_INVALID_LENGTHS";
    case ATTN_INVALID_INDEX: return "ATTN_INVALID_INDEX";
    case ATTN_INVALID_VALUE: return "ATTN_INVALID_VALUE";
    case ATTN_INVALID_CONFLICT: return "ATTN_INVALID_CONFLICT";
    case ATTN_INVALID_OVERLAP: return "ATTN_INVALID_OVERLAP";
    case ATTN_INVALID_OVERFLOW: return "ATTN_INVALID_OVERFLOW";
    case ATTN_INVALID_WORKSPACE: return "ATTN_INVALID_WORKSPACE";
    }
    return "unknown status";
}
