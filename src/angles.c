/* SPDX-License-Identifier: BSD-3-Clause */
#include "angles.h"

#include <math.h>

static struct attn_twofold product(struct attn_twofold a, struct attn_twofold b)
{
    const double hi = a.hi * b.hi;
    const double lo = fma(a.hi, b.hi, -hi) + (a.hi * b.lo + a.lo * b.hi);
    const double sum = hi + lo;
    return (struct attn_twofold){sum, lo - (sum - hi)};
}

/* base^(-1 / n): the double next to it, and one step of Newton's method on its n-th power. */
static struct attn_twofold inverse_root(double base, int64_t n)
{
    struct attn_twofold root = {pow(base, -1 / (double)n), 0}, power = {base, 0};
    for (int64_t i = 0; i < n; i++)
        power = product(power, root);
    root.lo = -root.hi * ((power.hi - 1 + power.lo) / (double)n);
    return root;
}

void attn_angles_begin(struct attn_angles *a, const attn_rotation *rotation, bool inverse)
{
    a->rotation = rotation;
    a->inverse = inverse;
    a->first = a->pairs = 0;
    a->next = (struct attn_twofold){1, 0};
    if (!rotation->frequency && rotation->dim > 0)
        a->ratio = inverse_root(rotation->base, rotation->dim / 2);
}

bool attn_angles_next(struct attn_angles *a)
{
    const int64_t all = a->rotation->dim / 2;
    a->first += a->pairs;
    a->pairs = all - a->first < ATTN_ANGLE_PAIRS ? all - a->first : ATTN_ANGLE_PAIRS;
    a->far_known = a->at_known = false;
    a->near_known = 0;
    for (int64_t n = 0; n < a->pairs; n++)
        if (a->rotation->frequency) {
            a->frequency[n] = (struct attn_twofold){a->rotation->frequency[a->first + n], 0};
        } else {
            a->frequency[n] = a->next;
            a->next = product(a->next, a->ratio);
        }
    return a->pairs > 0;
}

static void turn_to(const struct attn_angles *a, int64_t position, struct attn_circle *to)
{
    for (int64_t n = 0; n < a->pairs; n++) {
        const struct attn_turn t = attn_turn_to(position, a->frequency[n]);
        to->cos[n] = t.cos;
        to->sin[n] = t.sin;
    }
}

static struct attn_turn turn_at(const struct attn_circle *c, int64_t n)
{
    return (struct attn_turn){c->cos[n], c->sin[n]};
}

const struct attn_circle *attn_angles_at(struct attn_angles *a, int64_t position)
{
    if (a->at_known && a->at_position == position)
        return &a->at;
    const int64_t rest = attn_angle_rest(position);
    const struct attn_circle *near = &a->near[rest], *far = &a->far;
    if (!(a->near_known >> rest & 1)) {
        turn_to(a, rest, &a->near[rest]);
        a->near_known |= UINT32_C(1) << rest;
    }
    if (!a->far_known || a->far_position != position - rest) {
        turn_to(a, position - rest, &a->far);
        a->far_position = position - rest;
        a->far_known = true;
    }
    for (int64_t n = 0; n < a->pairs; n++) {
        const struct attn_turn t = attn_turn_sum(turn_at(far, n), turn_at(near, n), a->inverse);
        a->at.cos[n] = t.cos;
        a->at.sin[n] = t.sin;
    }
    a->at_position = position;
    a->at_known = true;
    return &a->at;
}
