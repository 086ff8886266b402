/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A device that runs kernels on one thread of the host. Every thread of a block is a fiber. They
 * take turns only where they wait, in an order drawn from a seed, and several blocks are under way
 * at once. What the hardware leaves open goes a bad way: shared memory begins as NaN; copies land
 * when they have to and not before, or, some of them, at once; and a grid whose threads all wait is
 * reported, with what they wait for.
 */
#ifndef EMULATOR_MACHINE_H
#define EMULATOR_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <string>

namespace emulator {

struct launch {
    int blocks;          /* in the grid */
    int threads;         /* of a block, a multiple of 32 */
    size_t shared_bytes;
    uint64_t seed = 0;   /* 0: threads take turns in their order, and copies land late. Of others
                            even ones have copies land at any time; those whose half is odd have
                            some warps, or threads, go before others all the time */
    int blocks_at_once = 2;
};

/* Runs kernel() as every thread of the grid. Returns what went wrong, the first that did, and then
 * what memory holds is undefined; empty if nothing did. */
std::string run(const launch &l, const std::function<void()> &kernel);

/* How often a load of matrices met a bank a second time, since the last run() began. */
long bank_conflicts();

/* Memory that ends, but for less than `align` bytes, at a page that nobody may touch; all bytes
 * 0xff. Given back by unmap_guarded(). */
void *map_guarded(size_t bytes, size_t align);
void unmap_guarded(void *data, size_t bytes, size_t align);

/* ---- For device_host.h, within a kernel ----------------------------------------------------- */

int thread_index();
int block_index();
int grid_blocks();
int block_threads();
void *shared_memory();

/* A wrong use of the device: ends the launch. */
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* At barrier id until n threads have arrived there; or without waiting. */
void barrier_wait(int id, int n);
void barrier_arrive(int id, int n);

/* The last of a warp's 32 lanes to come does the work of all of them; operands[i] is lane i's.
 * `what` names the instruction, which has to be the same one for all. */
void collective(const char *what, void (*work)(void *const operands[32]), void *operand);

void copy_begin(void *to, const void *from, int bytes, bool valid);
void copies_commit();
void copies_wait(int but_last);

/* mbarriers, in shared memory, by their address; `bytes` more are expected in the phase. */
void mbarrier_init(void *barrier, int count);
void mbarrier_invalidate(void *barrier);
void mbarrier_arrive(void *barrier, long bytes);
void mbarrier_wait(void *barrier, int parity);

/* Asynchronous operations see what has been stored so far. (By any thread: an order between threads
 * is not looked at.) */
void fence_async();

/* Bulk copies. */
void bulk_load(void *to, const void *from, int bytes, void *barrier);
void bulk_store_to(void *to, const void *from, int bytes);
void tensor_load(void *to, const void *map, void *barrier, const int *coordinate, int rank);
void tensor_store(const void *map, const void *from, const int *coordinate, int rank);
void stores_commit();
void stores_wait(int but_last, bool reading_only);

/* Where p is in the address space of shared memory. */
uint32_t shared_address(const void *p);

/* Products of warpgroups, a warp's part of them: c[n / 2] += 16 rows of a by b, both of 16-bit
 * numbers, 16 columns of a. Stricter than a GPU, which takes four warps at once. */
struct product {
    float *c;
    int n;
    uint64_t a, b;           /* descriptors, see device_sm90.h */
    const uint32_t *held;    /* a's fragment; null: it is in shared memory */
    bool rows;               /* b has its columns side by side */
    bool add;                /* to what c is; otherwise it is 0 before */
    float (*number)(uint16_t);
};
void products_begin();
void product_begin(const product *p);
void products_commit();
void products_wait(int but_last);

/* The warp's threads get n registers each, more or fewer than before. */
void set_registers(int n, bool more);

/* The lane that is elected. */
int elected_lane();

/* Lets other threads go first, perhaps. */
void yield();

void count_bank_conflicts(long n);

} // namespace emulator

#endif
