/* SPDX-License-Identifier: BSD-3-Clause */
/* The emulator: what its instructions compute, and that it finds what is wrong with a kernel. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "emulator/conformance.h"
#include "emulator/product.h"

extern "C" {
#include "report.h"
}

#define EXPECT(good, ...) ((good) ? report_pass() : report_fail(__VA_ARGS__))

namespace {

uint64_t state = 1;

uint64_t draw()
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state >> 33;
}

/* A buffer on the device: it begins as NaN and ends at a page that nobody may touch. */
template <class T> struct buffer {
    explicit buffer(size_t n) : count(n), data((T *)emulator::map_guarded(n * sizeof(T), sizeof(T)))
    {
    }
    ~buffer() { emulator::unmap_guarded(data, count * sizeof(T), sizeof(T)); }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    size_t count;
    T *data;
};

/* ---- Products ------------------------------------------------------------------------------- */

struct shape {
    int m, n, k;
};

/* Runs the kernel on one shape; what went wrong, or how many results are. */
template <int planted, bool transposed> std::string multiply(shape s, uint64_t seed, int at_once)
{
    const int across = (s.n + product::COLUMNS - 1) / product::COLUMNS;
    const int down = (s.m + product::ROWS - 1) / product::ROWS;
    buffer<uint16_t> a((size_t)(s.m * s.k)), b((size_t)(s.n * s.k));
    buffer<float> c((size_t)(s.m * s.n)), largest((size_t)(s.m * across));
    for (size_t i = 0; i < a.count; i++)
        a.data[i] = attn_f32_to_bf16((float)(draw() % 1000) / 500 - 1);
    for (size_t i = 0; i < b.count; i++)
        b.data[i] = attn_f32_to_bf16((float)(draw() % 1000) / 500 - 1);

    emulator::launch l;
    l.blocks = across * down;
    l.threads = product::THREADS;
    l.shared_bytes = product::SHARED_BYTES;
    l.seed = seed;
    l.blocks_at_once = at_once;
    const std::string wrong = emulator::run(l, [&] {
        product::multiply<planted, transposed>(a.data, b.data, c.data, largest.data, s.m, s.n, s.k);
    });
    if (!wrong.empty())
        return wrong;
    if (emulator::bank_conflicts() > 0)
        return std::to_string(emulator::bank_conflicts()) + " bank conflicts";

    int bad = 0;
    for (int i = 0; i < s.m; i++)
        for (int block = 0; block < across; block++) {
            float most = -INFINITY;
            for (int j = block * product::COLUMNS; j < s.n && j < (block + 1) * product::COLUMNS;
                 j++) {
                double sum = 0;
                for (int x = 0; x < s.k; x++)
                    sum += (double)attn_bf16_to_f32(a.data[i * s.k + x]) *
                           (double)attn_bf16_to_f32(b.data[transposed ? x * s.n + j : j * s.k + x]);
                const float got = c.data[i * s.n + j];
                bad += !(fabs((double)got - sum) <= 1e-6 * s.k);
                most = got > most ? got : most;
            }
            bad += !(largest.data[i * across + block] == most);
        }
    return bad ? std::to_string(bad) + " wrong results" : "";
}

const shape shapes[] = {{32, 16, 32}, {1, 16, 8},    {33, 24, 40},
                        {64, 8, 64},  {31, 40, 104}, {70, 16, 72}};

template <bool transposed> void test_sound()
{
    for (const shape &s : shapes)
        for (uint64_t seed = 0; seed < 6; seed++) {
            const std::string wrong =
                multiply<product::SOUND, transposed>(s, seed, 1 + (int)(seed % 3));
            EXPECT(wrong.empty(), "%d x %d x %d, seed %d: %s", s.m, s.n, s.k, (int)seed,
                   wrong.c_str());
        }
}

/* Whether the fault shows on some shape. In a process of its own: it may touch a guard page. */
template <int planted> void test_fault()
{
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        for (const shape &s : shapes)
            for (uint64_t seed = 0; seed < 6; seed++)
                if (!multiply<planted, false>(s, seed, 2).empty() ||
                    !multiply<planted, true>(s, seed, 2).empty())
                    _exit(1);
        _exit(0);
    }
    int status = 0;
    const bool ended = child > 0 && waitpid(child, &status, 0) == child;
    EXPECT(ended && !(WIFEXITED(status) && WEXITSTATUS(status) == 0), "fault %d is not found",
           planted);
}

template <int... planted> void test_faults(std::integer_sequence<int, planted...>)
{
    (void)std::initializer_list<int>{(planted != product::SOUND ? test_fault<planted>() : (void)0,
                                      0)...};
}

/* ---- Single instructions -------------------------------------------------------------------- */

std::string run_block(int threads, uint64_t seed, const std::function<void()> &kernel)
{
    emulator::launch l;
    l.blocks = 1;
    l.threads = threads;
    l.shared_bytes = 4096;
    l.seed = seed;
    return emulator::run(l, kernel);
}

void test_lanes(uint64_t seed)
{
    const std::string wrong = run_block(64, seed, [] {
        const int lane = dev::lane();
        if (dev::shuffle(100 + lane, 7) != 107 ||
            dev::shuffle_xor(0.5 * lane, 5) != 0.5 * (lane ^ 5))
            emulator::fault("shuffle");
        if (dev::ballot(lane % 3 == 0) != 0x49249249)
            emulator::fault("ballot");
        dev::sync_warp();
    });
    EXPECT(wrong.empty(), "lanes: %s", wrong.c_str());
}

/* One warp hands numbers to another through shared memory and two barriers. */
void test_barriers(uint64_t seed)
{
    enum { FULL = 1, EMPTY = 2, ROUNDS = 20 };
    const std::string wrong = run_block(64, seed, [] {
        volatile int *const box = (volatile int *)dev::shared();
        for (int round = 0; round < ROUNDS; round++)
            if (dev::warp() == 0) {
                if (round > 0)
                    dev::sync_some(EMPTY, 64);
                box[dev::lane()] = round * 32 + dev::lane();
                dev::arrive(FULL, 64);
            } else {
                dev::sync_some(FULL, 64);
                if (box[31 - dev::lane()] != round * 32 + 31 - dev::lane())
                    emulator::fault("round %d: %d", round, box[31 - dev::lane()]);
                if (round + 1 < ROUNDS)
                    dev::arrive(EMPTY, 64);
            }
    });
    EXPECT(wrong.empty(), "barriers: %s", wrong.c_str());
}

/* Tiles that blocks take from a counter: each is taken once. */
void test_counter(uint64_t seed)
{
    enum { TILES = 50 };
    buffer<int> next(1), taken(TILES);
    *next.data = 0;
    memset(taken.data, 0, sizeof(int) * TILES);
    emulator::launch l;
    l.blocks = 5;
    l.threads = 32;
    l.shared_bytes = 4;
    l.seed = seed;
    l.blocks_at_once = 3;
    const std::string wrong = emulator::run(l, [&] {
        for (;;) {
            int tile = 0;
            if (dev::lane() == 0)
                tile = dev::add_atomic(next.data, 1);
            tile = dev::shuffle(tile, 0);
            if (tile >= TILES)
                return;
            if (dev::lane() == 0)
                taken.data[tile]++;
        }
    });
    bool once = true;
    for (int n = 0; n < TILES; n++)
        once = once && taken.data[n] == 1;
    EXPECT(wrong.empty() && once, "counter: %s", wrong.c_str());
}

void test_exp2()
{
    const float xs[] = {0, 1, -1, 0.5f, -126, 127, 128, -200, -INFINITY};
    for (float x : xs) {
        const double y = exp2((double)x), got = (double)dev::exp2_fast(x);
        EXPECT(x < -126 ? got == 0 : isinf((float)y) ? isinf(got) : fabs(got - y) <= 0x1p-22 * y,
               "exp2 of %g: %g", (double)x, got);
    }
    EXPECT(isnan(dev::exp2_fast(NAN)), "exp2 of NaN");
}

bool tells(const std::string &wrong, const char *what)
{
    return wrong.find(what) != std::string::npos;
}

/* Wrong uses are told by name. */
void test_reports()
{
    std::string wrong = run_block(64, 1, [] {
        if (dev::thread() < 32)
            dev::sync();
    });
    EXPECT(tells(wrong, "deadlock") && tells(wrong, "threads 0 to 31 wait at barrier 0, where 32 of 64 are") &&
               tells(wrong, "threads 32 to 63 have ended"),
           "deadlock: \"%s\"", wrong.c_str());
    wrong = run_block(32, 1, [] {
        if (dev::lane() < 3)
            dev::sync_warp();
        else
            dev::ballot(true);
    });
    EXPECT(tells(wrong, "sync_warp") && tells(wrong, "ballot"), "lanes apart: \"%s\"",
           wrong.c_str());
    wrong = run_block(64, 1, [] { dev::sync_some(3, dev::warp() == 0 ? 64 : 32); });
    EXPECT(tells(wrong, "barrier 3"), "counts that differ: \"%s\"", wrong.c_str());
    wrong = run_block(32, 0, [] { dev::copy_async<16>((char *)dev::shared() + 8, "", false); });
    EXPECT(tells(wrong, "not aligned"), "alignment: \"%s\"", wrong.c_str());
    wrong = run_block(32, 0, [] { dev::copy_async<4>((char *)dev::shared() + 4096, "", false); });
    EXPECT(tells(wrong, "not in shared memory"), "a copy elsewhere: \"%s\"", wrong.c_str());
    wrong = run_block(32, 0, [] {
        dev::copy_async<4>(dev::shared(), "", false);
        dev::commit_copies();
    });
    EXPECT(tells(wrong, "before its copies have landed"), "not waited for: \"%s\"", wrong.c_str());
    wrong = run_block(40, 0, [] {});
    EXPECT(tells(wrong, "multiple of 32"), "a part of a warp: \"%s\"", wrong.c_str());
    long conflicts = 0;
    wrong = run_block(32, 0, [] {
        uint32_t r[4];
        dev::load_matrices(r, (char *)dev::shared() + dev::lane() % 8 * 128);
    });
    conflicts = emulator::bank_conflicts();
    EXPECT(wrong.empty() && conflicts == 4 * 7, "%ld bank conflicts", conflicts);
}

/* All instructions on the same numbers: in whatever order, the same bits; and a bit that differs is
 * found. */
void test_conformance()
{
    using namespace conformance;
    std::vector<uint32_t> inputs(INPUTS * THREADS * WORDS), first(RESULTS * THREADS * WORDS);
    draw_inputs(inputs.data(), 1);
    std::string wrong = emulate(inputs.data(), first.data(), 0);
    EXPECT(wrong.empty(), "conformance: %s", wrong.c_str());
    for (uint64_t seed = 1; seed < 6; seed++) {
        std::vector<uint32_t> results(first.size());
        wrong = emulate(inputs.data(), results.data(), seed);
        EXPECT(wrong.empty() && results == first, "conformance, seed %d: %s", (int)seed,
               wrong.c_str());
    }
    for (int r = 0; r < RESULTS; r++) {
        const uint32_t *const sound = &first[(size_t)r * THREADS * WORDS];
        std::vector<uint32_t> changed(sound, sound + THREADS * WORDS);
        EXPECT(*difference((enum result)r, sound, sound) == 0, "%s", name((enum result)r));
        changed[WORDS] ^= 1u << 24;
        EXPECT(*difference((enum result)r, changed.data(), sound) != 0, "%s: a difference passes",
               name((enum result)r));
    }
}

} // namespace

int main()
{
    report_begin("emulator");
    for (uint64_t seed = 0; seed < 10; seed++) {
        test_lanes(seed);
        test_barriers(seed);
        test_counter(seed);
    }
    test_exp2();
    test_reports();
    test_conformance();
    test_sound<false>();
    test_sound<true>();
    test_faults(std::make_integer_sequence<int, product::FAULTS>());
    return report_end();
}
