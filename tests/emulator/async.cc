/* SPDX-License-Identifier: BSD-3-Clause */
/* What goes on beside the threads: mbarriers, bulk copies, shared memory as they see it. */
#include <string.h>

#include "emulator/inner.h"
#include "emulator/tensor_map.h"

namespace emulator {

/* ---- Shared memory -------------------------------------------------------------------------- */

size_t place_of(const char *what, const void *p, size_t bytes)
{
    const char *const shared = m.current->home->shared;
    const size_t size = m.l->shared_bytes;
    if ((const char *)p < shared || (const char *)p > shared + size ||
        bytes > size - (size_t)((const char *)p - shared))
        fault("%s: %zu bytes at %p: not in shared memory", what, bytes, p);
    return (size_t)((const char *)p - shared);
}

static char *seen_by_async()
{
    block *const b = m.current->home;
    if (b->seen.empty())
        b->seen.resize(m.l->shared_bytes, (char)0xff); /* as shared memory begins */
    return b->seen.data();
}

const char *read_async(const char *what, size_t at, size_t bytes)
{
    const char *const seen = seen_by_async() + at;
    if (at + bytes > m.l->shared_bytes)
        fault("%s: byte %zu, and shared memory has %zu", what, at + bytes, m.l->shared_bytes);
    if (memcmp(seen, m.current->home->shared + at, bytes) != 0)
        fault("%s: byte %zu of shared memory has been stored without fence_async()", what, at);
    return seen;
}

static void write_async(size_t at, const void *from, size_t bytes)
{
    memcpy(seen_by_async() + at, from, bytes);
    memcpy(m.current->home->shared + at, from, bytes);
}

/* Nobody knows what is there until the copy has landed: NaN, or numbers that nothing tells from
 * others, as a kernel may do again what came to NaN. */
static void spoil(const char *what, size_t at, size_t bytes)
{
    const std::vector<char> unknown(bytes, draw() % 2 == 0 ? (char)0xff : (char)0x5a);
    if (products_read(m.current->home, at, bytes))
        fault("%s: over %zu bytes from byte %zu on, which products under way read", what, bytes, at);
    read_async(what, at, bytes);
    write_async(at, unknown.data(), bytes);
}

void fence_async()
{
    block *const b = m.current->home;
    memcpy(seen_by_async(), b->shared, m.l->shared_bytes);
    for (auto &x : b->mbarriers)
        x.second.fenced = true;
}

/* ---- mbarriers ------------------------------------------------------------------------------ */

static const uint64_t STAMP = UINT64_C(0x7265697272616273); /* where a sound one is */

static mbarrier *mbarrier_at(const char *what, void *p)
{
    const size_t at = place_of(what, p, sizeof STAMP);
    auto &all = m.current->home->mbarriers;
    const auto found = all.find(at);
    uint64_t stamp;
    if (found == all.end())
        fault("%s: no mbarrier at byte %zu", what, at);
    memcpy(&stamp, p, sizeof stamp);
    if (stamp != STAMP)
        fault("%s: the mbarrier at byte %zu has been written over", what, at);
    return &found->second;
}

static void complete(mbarrier *b)
{
    if (b->left > 0 || b->bytes != 0)
        return;
    b->phase++;
    b->left = b->count;
    for (thread *t : b->waiting)
        wake(t);
    b->waiting.clear();
}

static void count_bytes(mbarrier *b, long bytes)
{
    b->bytes += bytes;
    if (b->bytes >= 1 << 20 || b->bytes <= -(1 << 20))
        fault("mbarrier: %ld bytes to come", b->bytes);
}

/* In some orders others go first. */
static void yield_perhaps()
{
    if (m.l->seed && draw() % 2 == 0)
        yield();
}

void mbarrier_init(void *p, int count)
{
    const size_t at = place_of("mbarrier_init", p, sizeof STAMP);
    if (at % sizeof STAMP != 0 || count < 1 || count >= 1 << 20)
        fault("mbarrier_init: at byte %zu, of %d", at, count);
    if (m.current->home->mbarriers.count(at))
        fault("mbarrier_init: there is one at byte %zu", at);
    write_async(at, &STAMP, sizeof STAMP);
    mbarrier b;
    b.count = b.left = count;
    m.current->home->mbarriers[at] = b;
}

void mbarrier_invalidate(void *p)
{
    if (!mbarrier_at("mbarrier_invalidate", p)->waiting.empty())
        fault("mbarrier_invalidate: threads wait there");
    m.current->home->mbarriers.erase(place_of("mbarrier_invalidate", p, sizeof STAMP));
    memset(p, 0xff, sizeof STAMP);
}

void mbarrier_arrive(void *p, long bytes)
{
    mbarrier *const b = mbarrier_at("mbarrier_arrive", p);
    if (b->left == 0)
        fault("mbarrier_arrive: more than %d arrivals in a phase", b->count);
    count_bytes(b, bytes);
    b->left--;
    complete(b);
    yield_perhaps();
}

void mbarrier_wait(void *p, int parity)
{
    while (mbarrier_at("mbarrier_wait", p)->phase % 2 == parity) {
        mbarrier_at("mbarrier_wait", p)->waiting.push_back(m.current);
        wait("mbarrier", (int)place_of("mbarrier_wait", p, sizeof STAMP), parity);
    }
    yield_perhaps();
}

std::string waits_at_mbarrier(const thread &t)
{
    const auto found = t.home->mbarriers.find((size_t)t.number);
    std::string text = "the mbarrier at byte " + std::to_string(t.number) + ", parity " +
                       std::to_string(t.parity);
    if (found != t.home->mbarriers.end())
        text += ", where " + std::to_string(found->second.left) + " arrivals and " +
                std::to_string(found->second.bytes) + " bytes are to come in phase " +
                std::to_string(found->second.phase);
    return text;
}

/* ---- Copies into shared memory -------------------------------------------------------------- */

/* Begins what brings `bytes` bytes to `at`, counted at the mbarrier once they are there. */
static void begin_load(const char *what, size_t at, size_t bytes, void *barrier,
                       const std::function<void()> &bring)
{
    if (!mbarrier_at(what, barrier)->fenced)
        fault("%s: its mbarrier has been made without fence_async()", what);
    spoil(what, at, bytes);
    const auto land = [=] {
        bring();
        mbarrier *const b = mbarrier_at(what, barrier);
        count_bytes(b, -(long)bytes);
        complete(b);
    };
    if (m.l->seed && draw() % 4 == 0)
        land();
    else
        m.events.push_back({m.current, land, true});
}

void bulk_load(void *to, const void *from, int bytes, void *barrier)
{
    const size_t at = place_of("load_bulk", to, (size_t)bytes);
    if (at % 16 != 0 || (uintptr_t)from % 16 != 0 || bytes % 16 != 0 || bytes <= 0)
        fault("load_bulk: %d bytes from %p to byte %zu: not aligned", bytes, from, at);
    begin_load("load_bulk", at, (size_t)bytes, barrier,
               [=] { write_async(at, from, (size_t)bytes); });
}

/* Where 16 bytes of shared memory at `address` are. */
static size_t swizzled(size_t address, uint32_t swizzle)
{
    return address ^ ((address >> 7 & ((1u << swizzle) - 1)) << 4);
}

static tensor_map map_of(const char *what, const void *bits, int rank)
{
    tensor_map map;
    memcpy(&map, bits, sizeof map);
    if (map.mark != MAP_MARK || (uintptr_t)bits % 64 != 0)
        fault("%s: no tensor map", what);
    if ((int)map.rank != rank)
        fault("%s: %d coordinates, and the tensor has %d", what, rank, (int)map.rank);
    return map;
}

static size_t box_bytes(const tensor_map &map)
{
    size_t bytes = map.element_size;
    for (uint32_t n = 0; n < map.rank; n++)
        bytes *= map.box[n];
    return bytes;
}

struct coordinates {
    int at[5];
};

/* Each 16 bytes of a box: where they are in the tensor, of which only the first `own` are its own;
 * where in shared memory. */
template <class F>
static void each_chunk(const tensor_map &map, const coordinates &first, size_t at, const F &visit)
{
    const int64_t each = 16 / (int64_t)map.element_size, size0 = (int64_t)map.size[0];
    const size_t count = box_bytes(map) / 16;
    uint32_t in[5] = {0};
    for (size_t n = 0; n < count; n++) {
        const int64_t x = (int64_t)first.at[0] + in[0], size = (int64_t)map.element_size;
        int64_t own = x < 0 || x >= size0 ? 0 : x + each > size0 ? size0 - x : each;
        uint64_t address = map.base + (uint64_t)(x * size);
        for (uint32_t i = 1; i < map.rank; i++) {
            const int64_t y = (int64_t)first.at[i] + in[i];
            if (y < 0 || (uint64_t)y >= map.size[i])
                own = 0;
            address += (uint64_t)y * map.stride[i - 1];
        }
        const size_t place = swizzled(SHARED_BASE + at + n * 16, map.swizzle) - SHARED_BASE;
        visit((char *)(uintptr_t)address, place, (size_t)(own * size));
        in[0] += (uint32_t)each;
        for (uint32_t i = 0; i + 1 < map.rank && in[i] >= map.box[i]; i++) {
            in[i] = 0;
            in[i + 1]++;
        }
    }
}

static coordinates coordinates_of(const char *what, const tensor_map &map, const int *at)
{
    coordinates c = {{0}};
    memcpy(c.at, at, sizeof *at * map.rank);
    if (at[0] * (int64_t)map.element_size % 16 != 0)
        fault("%s: column %d is not aligned to 16 bytes", what, at[0]);
    return c;
}

static size_t box_place(const char *what, const tensor_map &map, const void *p)
{
    const size_t at = place_of(what, p, box_bytes(map));
    if (at % 128 != 0)
        fault("%s: byte %zu of shared memory is not aligned to 128", what, at);
    return at;
}

void tensor_load(void *to, const void *bits, void *barrier, const int *coordinate, int rank)
{
    const tensor_map map = map_of("load_tensor", bits, rank);
    const coordinates first = coordinates_of("load_tensor", map, coordinate);
    const size_t at = box_place("load_tensor", map, to);
    begin_load("load_tensor", at, box_bytes(map), barrier, [=] {
        each_chunk(map, first, at, [](const char *tensor, size_t place, size_t own) {
            char chunk[16] = {0};
            if (own > 0)
                memcpy(chunk, tensor, own);
            write_async(place, chunk, sizeof chunk);
        });
    });
}

/* ---- Copies out of it ----------------------------------------------------------------------- */

/* Takes and puts on their own at any time, and at the latest when that is waited for. */
static void begin_store(const std::function<void()> &take, const std::function<void()> &put)
{
    const auto store = std::make_shared<bulk_store>();
    store->take = take;
    store->put = put;
    m.current->stores.push_back(store);
    m.events.push_back({m.current, [=] {
        if (store->take) {
            store->take();
            store->take = nullptr;
        } else if (store->put) {
            store->put();
            store->put = nullptr;
        }
    }, false});
}

static void finish_store(bulk_store *s, bool reading_only)
{
    if (s->take)
        s->take();
    s->take = nullptr;
    if (!reading_only && s->put)
        s->put();
    if (!reading_only)
        s->put = nullptr;
}

void bulk_store_to(void *to, const void *from, int bytes)
{
    const size_t at = place_of("store_bulk", from, (size_t)bytes);
    if (at % 16 != 0 || (uintptr_t)to % 16 != 0 || bytes % 16 != 0 || bytes <= 0)
        fault("store_bulk: %d bytes from byte %zu to %p: not aligned", bytes, at, to);
    const auto taken = std::make_shared<std::vector<char>>((size_t)bytes);
    begin_store([=] { memcpy(taken->data(), read_async("store_bulk", at, (size_t)bytes),
                             (size_t)bytes); },
                [=] { memcpy(to, taken->data(), (size_t)bytes); });
}

void tensor_store(const void *bits, const void *from, const int *coordinate, int rank)
{
    const tensor_map map = map_of("store_tensor", bits, rank);
    const coordinates first = coordinates_of("store_tensor", map, coordinate);
    for (uint32_t i = 0; i < map.rank; i++)
        if (first.at[i] < 0)
            fault("store_tensor: axis %d begins at %d", (int)i, first.at[i]);
    const size_t at = box_place("store_tensor", map, from);
    const auto taken = std::make_shared<std::vector<char>>(m.l->shared_bytes);
    begin_store([=] {
        const size_t bytes = box_bytes(map);
        memcpy(taken->data() + at, read_async("store_tensor", at, bytes), bytes);
    }, [=] {
        each_chunk(map, first, at, [&](char *tensor, size_t place, size_t own) {
            if (own > 0)
                memcpy(tensor, taken->data() + place, own);
        });
    });
}

void stores_commit()
{
    m.current->store_groups.push_back(m.current->stores);
    m.current->stores.clear();
}

void stores_wait(int but_last, bool reading_only)
{
    auto &groups = m.current->store_groups;
    for (size_t n = 0; n + (size_t)but_last < groups.size(); n++)
        for (const auto &s : groups[n])
            finish_store(s.get(), reading_only);
    while (!reading_only && (int)groups.size() > but_last)
        groups.pop_front();
}

/* ---- Ends ----------------------------------------------------------------------------------- */

void async_thread_ends(const thread *t)
{
    bool taken = t->stores.empty();
    for (const auto &group : t->store_groups)
        for (const auto &s : group)
            taken = taken && !s->take;
    if (!taken)
        fault("a thread ends before its bulk copies have read shared memory");
}

/* What stores have taken gets to where it belongs; anything else is late. */
void async_block_ends(block *b)
{
    for (thread &t : b->threads)
        for (const auto &group : t.store_groups)
            for (const auto &s : group)
                finish_store(s.get(), false);
    size_t kept = 0;
    for (const event &e : m.events) {
        if (e.by->home == b && e.is_load)
            fault("a block ends before its bulk copies have landed");
        if (e.by->home != b)
            m.events[kept++] = e;
    }
    m.events.resize(kept);
    products_block_ends(b);
}

/* ---- The driver's part ---------------------------------------------------------------------- */

int encode_tiled(struct attn_cuda_tensor_map *to, int type, uint32_t rank, void *data,
                 const uint64_t *size, const uint64_t *stride, const uint32_t *box,
                 const uint32_t *step, int interleave, int swizzle, int, int fill)
{
    tensor_map map = {};
    if ((type != 1 && type != 2) || rank < 1 || rank > 5 || interleave != 0 || fill != 0 ||
        swizzle < 0 || swizzle > 3 || (uintptr_t)data % 16 != 0)
        return 1;
    map.mark = MAP_MARK;
    map.base = (uintptr_t)data;
    map.rank = rank;
    map.element_size = (uint32_t)type * 2;
    map.swizzle = (uint32_t)swizzle;
    for (uint32_t n = 0; n < rank; n++) {
        map.size[n] = size[n];
        map.box[n] = box[n];
        if (size[n] < 1 || size[n] > UINT64_C(1) << 32 || box[n] < 1 || box[n] > 256 ||
            step[n] != 1)
            return 1;
    }
    for (uint32_t n = 0; n + 1 < rank; n++) {
        map.stride[n] = stride[n];
        if (stride[n] % 16 != 0 || stride[n] >= UINT64_C(1) << 40)
            return 1;
    }
    /* Rows of other sizes are possible where there is a swizzle; nobody here needs to know how. */
    const uint32_t row = map.box[0] * map.element_size;
    if (swizzle == 0 ? row % 16 != 0 : row != 16u << swizzle)
        return 1;
    memset(to, 0, sizeof *to);
    memcpy(to, &map, sizeof map);
    return 0;
}

} // namespace emulator
