/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Includes the file that TEMPLATE names once for every element type, with
 *     ELEM         its type in C
 *     REAL         its computing type
 *     GET(x)       an element as a double
 *     PUT(a)       a double as an element, rounded
 *     TYPED(name)  the name with the type's suffix
 */
#include "half.h"

#define ELEM float
#define REAL float
#define GET(x) ((double)(x))
#define PUT(a) ((float)(a))
#define TYPED(name) name##_f32
#include TEMPLATE
#undef ELEM
#undef REAL
#undef GET
#undef PUT
#undef TYPED

#define ELEM double
#define REAL double
#define GET(x) (x)
#define PUT(a) (a)
#define TYPED(name) name##_f64
#include TEMPLATE
#undef ELEM
#undef REAL
#undef GET
#undef PUT
#undef TYPED

#define ELEM uint16_t
#define REAL float
#define GET(x) ((double)attn_f16_to_f32(x))
#define PUT(a) attn_f32_to_f16((float)(a))
#define TYPED(name) name##_f16
#include TEMPLATE
#undef ELEM
#undef REAL
#undef GET
#undef PUT
#undef TYPED

#define ELEM uint16_t
#define REAL float
#define GET(x) ((double)attn_bf16_to_f32(x))
#define PUT(a) attn_f32_to_bf16((float)(a))
#define TYPED(name) name##_bf16
#include TEMPLATE
#undef ELEM
#undef REAL
#undef GET
#undef PUT
#undef TYPED
#undef TEMPLATE

/* The functions of that name, by attn_dtype. */
#define ATTN_EACH_TYPE(name)                                                                       \
    {                                                                                              \
        [ATTN_F32] = name##_f32, [ATTN_F64] = name##_f64, [ATTN_F16] = name##_f16,                 \
        [ATTN_BF16] = name##_bf16                                                                  \
    }
