/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of two bf16 numbers, multiplied and added in f32 by one instruction. See word_bf16.h. The
 * instruction adds the two products, then the sum to c, and rounds both to odd: off by less than a
 * unit in the last place, and exact wherever the result is an f32. */

/* Words of the lower halves of two registers. */
INLINE vec paired(uint16x8_t low, uint16x8_t high)
{
    return vreinterpretq_f32_u16(vzip1q_u16(low, high));
}

INLINE uint16x8_t load_four(const elem *p) { return vcombine_u16(vld1_u16(p), vdup_n_u16(0)); }

INLINE vec low_half(vec w)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(w), 16));
}

INLINE vec high_half(vec w)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(w), vdupq_n_u32(0xffff0000)));
}

INLINE vec vec_mac(vec a, vec b, vec c)
{
    return vbfdotq_f32(c, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}

INLINE vec word_load(const elem *p) { return vreinterpretq_f32_u16(vld1q_u16(p)); }

INLINE vec word_zip(const elem *const row[2])
{
    return paired(load_four(row[0]), load_four(row[1]));
}

INLINE vec word_pack(const vec a[2])
{
    return paired(vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(a[0])),
                  vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(a[1])));
}

INLINE vec word_seen(vec w, const vmask seen[2])
{
    const uint32x4_t all = vbslq_u32(vdupq_n_u32(0xffff), seen[0], seen[1]);
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(w), all));
}

INLINE vec word_negate(vec w)
{
    return vreinterpretq_f32_u16(veorq_u16(vreinterpretq_u16_f32(w), vdupq_n_u16(0x8000)));
}

#include "cpu/word_bf16.h"
