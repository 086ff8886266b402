/* SPDX-License-Identifier: BSD-3-Clause */
/* What the emulator's parts share: machine.cc runs threads, async.cc has what goes on beside them,
 * warpgroup.cc the products and registers of warpgroups. */
#ifndef EMULATOR_INNER_H
#define EMULATOR_INNER_H

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/fiber.h"
#include "emulator/machine.h"

namespace emulator {

enum { LANES = 32, BARRIERS = 16 };

struct block;
struct warp_products; /* warpgroup.cc */

struct copy {
    void *to;
    const void *from;
    int bytes;
    bool valid;
};

/* A bulk copy out of shared memory: first it takes what it copies, then it puts that down. */
struct bulk_store {
    std::function<void()> take, put; /* empty once that is done */
};

struct thread {
    fiber flow;
    char *stack;
    int index;
    block *home;
    uint64_t rank = 0; /* in orders by rank: of those that can go on the highest does */
    const char *waits_for = nullptr; /* null: it can go on */
    int number = 0, parity = 0;      /* of the barrier; where the mbarrier is */
    bool done = false;
    std::vector<copy> copies;              /* of the group that is not yet committed */
    std::deque<std::vector<copy>> groups;  /* under way, oldest first */
    std::vector<std::shared_ptr<bulk_store>> stores; /* likewise, of bulk copies */
    std::deque<std::vector<std::shared_ptr<bulk_store>>> store_groups;
};

struct barrier {
    int arrived = 0, expected = 0;
    std::vector<thread *> waiting;
};

struct mbarrier {
    int count = 0, left = 0; /* arrivals in a phase; those to come */
    long bytes = 0;          /* to come */
    int phase = 0;
    bool fenced = false; /* bulk copies see that it is there */
    std::vector<thread *> waiting;
};

struct warp {
    void *operands[LANES];
    int arrived = 0;
    const char *what = nullptr;
    int registers = 0; /* of a thread */
    std::shared_ptr<warp_products> products;
};

struct block {
    int index;
    std::vector<thread> threads;
    std::vector<warp> warps;
    barrier barriers[BARRIERS];
    std::map<size_t, mbarrier> mbarriers; /* by their place in shared memory */
    char *shared;
    std::vector<char> seen; /* shared memory as asynchronous operations see it; empty before the
                               first of them */
    int registers;          /* that no warp has */
    std::vector<thread *> short_of_registers;
    int left; /* threads that are not done */
};

/* What goes on beside the threads, begun by one of them: lands at any time. */
struct event {
    thread *by;
    std::function<void()> land;
    bool is_load; /* into shared memory */
};

/* The launch in work; one at a time. */
struct machine {
    const launch *l;
    const std::function<void()> *kernel;
    std::vector<thread *> ready; /* a heap in orders by rank */
    std::vector<event> events;
    thread *current;
    bool landing; /* an event of current's is: nobody runs */
    fiber host;
    uint64_t state; /* of the random numbers */
    std::string wrong;
    long conflicts;
    std::vector<char *> stacks; /* not in use */
};
extern machine m;

uint64_t draw();

/* What makes fault() end an event. */
struct faulted {};

/* The current thread waits; the other is ready again. */
void wait(const char *what, int number = 0, int parity = 0);
void wake(thread *t);

/* What a thread waits for, with what is known of it. */
std::string waits_at(const thread &t);
std::string waits_at_mbarrier(const thread &t);

/* Shared memory begins at this address of its own address space; where p is in it, with `bytes`
 * bytes from there on, or a fault of `what`. */
enum { SHARED_BASE = 1024 };
size_t place_of(const char *what, const void *p, size_t bytes);

/* Shared memory from `at` on as an asynchronous operation reads it: without what was stored and not
 * fenced, which is a fault. */
const char *read_async(const char *what, size_t at, size_t bytes);

/* Whether products under way read any of it. */
bool products_read(const block *b, size_t at, size_t bytes);

/* Ends of threads, and of a block: whether all that they began has been waited for. */
void async_thread_ends(const thread *t);
void products_thread_ends(const thread *t);
void async_block_ends(block *b);
void products_block_ends(const block *b);

/* The registers that a launch gives each thread. */
int first_registers(int threads);

} // namespace emulator

#endif
