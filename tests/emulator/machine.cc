/* SPDX-License-Identifier: BSD-3-Clause */
#include "emulator/machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "emulator/inner.h"

namespace emulator {

namespace {

enum { STACK = 65536 };

} // namespace

machine m;

uint64_t draw()
{
    uint64_t z = m.state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static bool is_by_rank() { return m.l->seed / 2 % 2 == 1; }

static bool ranks_lower(const thread *a, const thread *b) { return a->rank < b->rank; }

static void make_ready(thread *t)
{
    m.ready.push_back(t);
    if (is_by_rank())
        std::push_heap(m.ready.begin(), m.ready.end(), ranks_lower);
}

void wake(thread *t)
{
    t->waits_for = nullptr;
    make_ready(t);
}

void wait(const char *what, int number, int parity)
{
    m.current->waits_for = what;
    m.current->number = number;
    m.current->parity = parity;
    fiber_switch(&m.current->flow, &m.host);
}

std::string waits_at(const thread &t)
{
    if (strcmp(t.waits_for, "barrier") == 0) {
        const barrier &b = t.home->barriers[t.number];
        return "barrier " + std::to_string(t.number) + ", where " + std::to_string(b.arrived) +
               " of " + std::to_string(b.expected) + " are";
    }
    if (strcmp(t.waits_for, "mbarrier") == 0)
        return waits_at_mbarrier(t);
    return t.waits_for;
}

namespace {

void body()
{
    thread *const t = m.current;
    (*m.kernel)();
    if (!t->copies.empty() || !t->groups.empty())
        fault("a thread ends before its copies have landed");
    async_thread_ends(t);
    products_thread_ends(t);
    t->done = true;
    fiber_switch(&t->flow, &m.host);
    abort();
}

size_t page() { return (size_t)sysconf(_SC_PAGESIZE); }

std::unique_ptr<block> block_begin(int index)
{
    std::unique_ptr<block> b(new block);
    b->index = index;
    b->threads.resize((size_t)m.l->threads);
    b->warps.resize((size_t)m.l->threads / LANES);
    b->shared = (char *)map_guarded(m.l->shared_bytes, 128);
    b->left = m.l->threads;
    b->registers = 0;
    const bool by_thread = m.l->seed / 4 % 4 == 3;
    uint64_t rank = 0;
    for (int i = 0; i < m.l->threads; i++) {
        thread &t = b->threads[(size_t)i];
        if (m.stacks.empty())
            m.stacks.push_back((char *)malloc(STACK));
        t.stack = m.stacks.back();
        m.stacks.pop_back();
        t.index = i;
        t.home = b.get();
        b->warps[(size_t)i / LANES].registers = first_registers(m.l->threads);
        fiber_begin(&t.flow, t.stack, t.stack + STACK, body);
        if (by_thread || i % LANES == 0)
            rank = draw() & ~UINT64_C(63);
        t.rank = rank + (uint64_t)(LANES - i % LANES);
        make_ready(&t);
    }
    return b;
}

void block_end(block *b)
{
    for (const thread &t : b->threads)
        m.stacks.push_back(t.stack);
    unmap_guarded(b->shared, m.l->shared_bytes, 128);
}

bool is_alike(const thread &a, const thread &b)
{
    return a.waits_for == b.waits_for && a.number == b.number && a.parity == b.parity &&
           a.done == b.done;
}

/* Who waits for what, threads that wait for the same told as one. */
std::string waiting(const std::vector<std::unique_ptr<block>> &blocks)
{
    std::string text = "deadlock:";
    for (const auto &b : blocks)
        for (size_t i = 0; i < b->threads.size(); i++) {
            size_t last = i;
            const thread &t = b->threads[i];
            const std::string what = t.done ? " have ended;" : " wait at " + waits_at(t) + ";";
            while (last + 1 < b->threads.size() && is_alike(b->threads[last + 1], t))
                last++;
            text += " block " + std::to_string(b->index) + ", threads " + std::to_string(i) +
                    " to " + std::to_string(last) + what;
            i = last;
        }
    return text;
}

/* The next to go on: in order, any, or the highest in rank. */
thread *take_ready()
{
    if (is_by_rank()) {
        std::pop_heap(m.ready.begin(), m.ready.end(), ranks_lower);
        thread *const highest = m.ready.back();
        m.ready.pop_back();
        return highest;
    }
    const size_t n = m.l->seed ? (size_t)(draw() % m.ready.size()) : 0;
    thread *const t = m.ready[n];
    m.ready.erase(m.ready.begin() + (ptrdiff_t)n);
    return t;
}

/* Whether something that goes on beside the threads is next: where none of them can go on, and in
 * half of all orders at any other time, too. */
bool is_event_next()
{
    return !m.events.empty() &&
           (m.ready.empty() || (m.l->seed && m.l->seed % 2 == 0 && draw() % 16 == 0));
}

/* What a thread has begun, or left undone: while nobody runs. */
void beside(thread *by, const std::function<void()> &what)
{
    m.current = by;
    m.landing = true;
    try {
        what();
    } catch (const faulted &) {
    }
    m.landing = false;
}

void land_event()
{
    const size_t n = m.l->seed ? (size_t)(draw() % m.events.size()) : 0;
    const event e = m.events[n];
    m.events.erase(m.events.begin() + (ptrdiff_t)n);
    beside(e.by, e.land);
}

void land(const copy &c)
{
    if (c.valid)
        memcpy(c.to, c.from, (size_t)c.bytes);
    else
        memset(c.to, 0, (size_t)c.bytes);
}

barrier *barrier_at(int id, int n)
{
    if (id < 0 || id >= BARRIERS)
        fault("barrier %d: there are %d", id, (int)BARRIERS);
    if (n <= 0 || n % LANES != 0 || n > m.l->threads)
        fault("barrier %d: %d threads of %d", id, n, m.l->threads);
    barrier *const b = &m.current->home->barriers[id];
    if (b->arrived == 0)
        b->expected = n;
    else if (b->expected != n)
        fault("barrier %d: %d threads expected, then %d", id, b->expected, n);
    return b;
}

/* One more; true, with the others woken, if it was the last. */
bool arrive_at(barrier *b)
{
    if (++b->arrived < b->expected)
        return false;
    b->arrived = 0;
    for (thread *t : b->waiting)
        wake(t);
    b->waiting.clear();
    return true;
}

} // namespace

std::string run(const launch &l, const std::function<void()> &kernel)
{
    std::vector<std::unique_ptr<block>> blocks;
    int next = 0;
    m.l = &l;
    m.kernel = &kernel;
    m.state = l.seed;
    m.conflicts = 0;
    m.wrong.clear();
    m.ready.clear();
    m.events.clear();
    m.landing = false;
    if (l.threads <= 0 || l.threads % LANES != 0)
        return "threads: " + std::to_string(l.threads) + " is no multiple of 32";
    while (m.wrong.empty() && (next < l.blocks || !blocks.empty())) {
        while (next < l.blocks && (int)blocks.size() < l.blocks_at_once)
            blocks.push_back(block_begin(next++));
        if (is_event_next()) {
            land_event();
            continue;
        }
        if (m.ready.empty()) {
            m.wrong = waiting(blocks);
            break;
        }
        m.current = take_ready();
        fiber_switch(&m.host, &m.current->flow);
        block *const b = m.current->home;
        if (m.wrong.empty() && m.current->done && --b->left == 0) {
            beside(m.current, [b] { async_block_ends(b); });
            for (size_t i = 0; i < blocks.size(); i++)
                if (blocks[i].get() == b) {
                    block_end(b);
                    blocks.erase(blocks.begin() + (ptrdiff_t)i);
                    break;
                }
        }
    }
    for (const auto &b : blocks)
        block_end(b.get());
    return m.wrong;
}

long bank_conflicts() { return m.conflicts; }
void count_bank_conflicts(long n) { m.conflicts += n; }

void *map_guarded(size_t bytes, size_t align)
{
    const size_t whole = (bytes + align - 1) / align * align;
    const size_t pages = (whole + page() - 1) / page() * page();
    char *const at = (char *)mmap(nullptr, pages + page(), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + pages, page(), PROT_NONE) != 0)
        abort();
    memset(at, 0xff, pages);
    return at + pages - whole;
}

void unmap_guarded(void *data, size_t bytes, size_t align)
{
    const size_t whole = (bytes + align - 1) / align * align;
    const size_t pages = (whole + page() - 1) / page() * page();
    munmap((char *)data + whole - pages, pages + page());
}

int thread_index() { return m.current->index; }
int block_index() { return m.current->home->index; }
int grid_blocks() { return m.l->blocks; }
int block_threads() { return m.l->threads; }
void *shared_memory() { return m.current->home->shared; }

void fault(const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    m.wrong = "block " + std::to_string(block_index()) + ", thread " +
              std::to_string(thread_index()) + ": " + text;
    if (m.landing)
        throw faulted();
    fiber_switch(&m.current->flow, &m.host);
    abort();
}

void barrier_wait(int id, int n)
{
    barrier *const b = barrier_at(id, n);
    if (arrive_at(b)) {
        yield();
        return;
    }
    b->waiting.push_back(m.current);
    wait("barrier", id);
}

void barrier_arrive(int id, int n) { arrive_at(barrier_at(id, n)); }

void collective(const char *what, void (*work)(void *const operands[32]), void *operand)
{
    thread *const t = m.current;
    warp &w = t->home->warps[(size_t)t->index / LANES];
    w.operands[t->index % LANES] = operand;
    if (w.arrived > 0 && strcmp(w.what, what) != 0)
        fault("lanes of one warp at %s and at %s", w.what, what);
    w.what = what;
    if (++w.arrived < LANES) {
        wait(what);
        return;
    }
    w.arrived = 0;
    work(w.operands);
    for (int i = 0; i < LANES; i++) {
        thread *const other = &t->home->threads[(size_t)(t->index / LANES * LANES + i)];
        if (other != t)
            wake(other);
    }
}

void yield()
{
    wake(m.current);
    fiber_switch(&m.current->flow, &m.host);
}

void copy_begin(void *to, const void *from, int bytes, bool valid)
{
    if ((uintptr_t)to % (uintptr_t)bytes != 0 || (valid && (uintptr_t)from % (uintptr_t)bytes != 0))
        fault("copy of %d bytes from %p to %p: not aligned", bytes, from, to);
    const char *const shared = (const char *)shared_memory();
    if ((char *)to < shared || (char *)to + bytes > shared + m.l->shared_bytes)
        fault("copy of %d bytes to %p: not in shared memory", bytes, to);
    const copy c = {to, from, bytes, valid};
    if (m.l->seed && draw() % 4 == 0)
        land(c);
    else
        m.current->copies.push_back(c);
}

void copies_commit()
{
    m.current->groups.push_back(m.current->copies);
    m.current->copies.clear();
}

void copies_wait(int but_last)
{
    std::deque<std::vector<copy>> &groups = m.current->groups;
    while ((int)groups.size() > but_last) {
        for (const copy &c : groups.front())
            land(c);
        groups.pop_front();
    }
}

} // namespace emulator
