/* SPDX-License-Identifier: BSD-3-Clause */
/* device_sm90.h on the host. */
#ifndef EMULATOR_DEVICE_HOST_SM90_H
#define EMULATOR_DEVICE_HOST_SM90_H

namespace dev {

DEVICE uint32_t shared_address(const void *p) { return emulator::shared_address(p); }

DEVICE void mbarrier_init(uint64_t *b, int n) { emulator::mbarrier_init(b, n); }
DEVICE void mbarrier_invalidate(uint64_t *b) { emulator::mbarrier_invalidate(b); }
DEVICE void mbarrier_arrive(uint64_t *b) { emulator::mbarrier_arrive(b, 0); }
DEVICE void mbarrier_expect(uint64_t *b, int bytes) { emulator::mbarrier_arrive(b, bytes); }
DEVICE void mbarrier_wait(uint64_t *b, int parity) { emulator::mbarrier_wait(b, parity); }

DEVICE void fence_async() { emulator::fence_async(); }

template <class... At>
DEVICE void load_tensor(void *to, const tensor_map *map, uint64_t *b, At... at)
{
    const int coordinates[] = {at...};
    emulator::tensor_load(to, map, b, coordinates, sizeof...(at));
}

template <class... At> DEVICE void store_tensor(const tensor_map *map, const void *from, At... at)
{
    const int coordinates[] = {at...};
    emulator::tensor_store(map, from, coordinates, sizeof...(at));
}

DEVICE void load_bulk(void *to, const void *from, int bytes, uint64_t *b)
{
    emulator::bulk_load(to, from, bytes, b);
}
DEVICE void store_bulk(void *to, const void *from, int bytes)
{
    emulator::bulk_store_to(to, from, bytes);
}
DEVICE void commit_stores() { emulator::stores_commit(); }
template <int n> DEVICE void wait_stores_read() { emulator::stores_wait(n, true); }
template <int n> DEVICE void wait_stores() { emulator::stores_wait(n, false); }

DEVICE void wg_begin() { emulator::products_begin(); }
DEVICE void wg_commit() { emulator::products_commit(); }
template <int n> DEVICE void wg_wait() { emulator::products_wait(n); }
template <int n, class T> DEVICE void hold(T *) {}

#define WG_MULTIPLY(name, number)                                                                  \
    template <int N, bool ROWS> DEVICE void name(float *c, uint64_t a, uint64_t b, bool add)       \
    {                                                                                              \
        const emulator::product p = {c, N, a, b, nullptr, ROWS, add, number};                      \
        emulator::product_begin(&p);                                                               \
    }                                                                                              \
    template <int N, bool ROWS>                                                                    \
    DEVICE void name(float *c, const uint32_t *a, uint64_t b, bool add)                            \
    {                                                                                              \
        const emulator::product p = {c, N, 0, b, a, ROWS, add, number};                            \
        emulator::product_begin(&p);                                                               \
    }
WG_MULTIPLY(wg_multiply_bf16, attn_bf16_to_f32)
WG_MULTIPLY(wg_multiply_f16, attn_f16_to_f32)
#undef WG_MULTIPLY

template <int n> DEVICE void raise_registers() { emulator::set_registers(n, true); }
template <int n> DEVICE void lower_registers() { emulator::set_registers(n, false); }

DEVICE bool elect()
{
    sync_warp();
    return lane() == emulator::elected_lane();
}

} // namespace dev

#endif
