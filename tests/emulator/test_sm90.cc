/* SPDX-License-Identifier: BSD-3-Clause */
/* The emulator's instructions of sm_90a: what they compute, and that misuse of them is found. */
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "emulator/conformance_sm90.h"
#include "emulator/tensor_map.h"

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

/* A matrix on the device, surrounded by NaN: [rows][columns] with a gap after each row. */
template <class T> struct matrix {
    matrix(int r, int c)
        : rows(r), columns(c), stride(c + 16 / (int)sizeof(T)), size((size_t)rows * (size_t)stride),
          data((T *)emulator::map_guarded(size * sizeof(T), 16))
    {
    }
    ~matrix() { emulator::unmap_guarded(data, size * sizeof(T), 16); }
    matrix(const matrix &) = delete;
    matrix &operator=(const matrix &) = delete;
    T &at(int r, int c) { return data[(size_t)r * (size_t)stride + (size_t)c]; }
    int rows, columns, stride;
    size_t size;
    T *data;
};

template <class T>
dev::tensor_map map_of(const matrix<T> &x, uint32_t columns, uint32_t rows, int swizzle)
{
    struct attn_cuda_tensor t = {x.data, 2, sizeof(T), (enum attn_cuda_swizzle)swizzle,
                                 {(uint64_t)x.columns, (uint64_t)x.rows},
                                 {(uint64_t)x.stride * sizeof(T)}, {columns, rows}};
    dev::tensor_map map = {};
    EXPECT(attn_cuda_make_map(emulator::encode_tiled, &t, &map), "a map of %d x %d", x.rows,
           x.columns);
    return map;
}

struct shape {
    int m, n, k;
};

/* Runs the kernel on one shape; what went wrong. */
template <int planted, bool transposed, int SWIZZLE, bool HELD>
std::string multiply(shape s, uint64_t seed, int blocks)
{
    using namespace product_sm90;
    const uint32_t width = (uint32_t)WIDTH<SWIZZLE>;
    matrix<uint16_t> a(s.m, s.k), b(transposed ? s.k : s.n, transposed ? s.n : s.k);
    matrix<float> c(s.m, s.n);
    for (matrix<uint16_t> *x : {&a, &b})
        for (int r = 0; r < x->rows; r++)
            for (int i = 0; i < x->columns; i++)
                x->at(r, i) = attn_f32_to_bf16((float)(draw() % 1000) / 500 - 1);
    const tensors t = {map_of(a, width, ROWS, SWIZZLE),
                       map_of(b, width, transposed ? DEPTH : COLUMNS, SWIZZLE),
                       map_of(c, COLUMNS, 64, 0), s.m, s.n, s.k};
    emulator::launch l;
    l.blocks = blocks;
    l.threads = THREADS;
    l.shared_bytes = SHARED_BYTES;
    l.seed = seed;
    const std::string wrong = emulator::run(
        l, [&] { product_sm90::multiply<planted, transposed, SWIZZLE, HELD>(t); });
    if (!wrong.empty())
        return wrong;
    int bad = 0;
    for (int i = 0; i < s.m; i++)
        for (int j = 0; j < c.stride; j++) {
            double sum = 0;
            for (int x = 0; x < s.k && j < s.n; x++)
                sum += (double)attn_bf16_to_f32(a.at(i, x)) *
                       (double)attn_bf16_to_f32(transposed ? b.at(x, j) : b.at(j, x));
            bad += j < s.n ? !(fabs((double)c.at(i, j) - sum) <= 1e-6 * s.k) : !isnan(c.at(i, j));
        }
    return bad ? std::to_string(bad) + " wrong results" : "";
}

const shape shapes[] = {{128, 128, 64}, {70, 36, 200}, {300, 132, 136}};

template <bool transposed, int SWIZZLE, bool HELD> void test_sound()
{
    for (const shape &s : shapes)
        for (uint64_t seed = 0; seed < 4; seed++) {
            const shape padded = {s.m, transposed ? (s.n + 7) / 8 * 8 : s.n, s.k};
            const std::string wrong = multiply<product_sm90::SOUND, transposed, SWIZZLE, HELD>(
                padded, seed, 1 + (int)(seed % 2));
            EXPECT(wrong.empty(), "%d x %d x %d, swizzle %d, seed %d: %s", s.m, s.n, s.k, SWIZZLE,
                   (int)seed, wrong.c_str());
        }
}

template <bool transposed, bool HELD> void test_swizzles()
{
    test_sound<transposed, 0, HELD>();
    test_sound<transposed, 1, HELD>();
    test_sound<transposed, 2, HELD>();
    test_sound<transposed, 3, HELD>();
}

/* Whether the fault shows, in the one form of the kernel or the other; in a process of its own, as
 * it may touch a guard page. */
template <int planted> void test_fault()
{
    const shape s = {300, 136, 200};
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        for (uint64_t seed = 0; seed < 6; seed++)
            if (!multiply<planted, false, 3, false>(s, seed, 1).empty() ||
                !multiply<planted, true, 3, true>(s, seed, 1).empty())
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
    (void)std::initializer_list<int>{
        (planted != product_sm90::SOUND ? test_fault<planted>() : (void)0, 0)...};
}

/* ---- Boxes ---------------------------------------------------------------------------------- */

std::string run_block(int threads, uint64_t seed, const std::function<void()> &kernel)
{
    emulator::launch l;
    l.blocks = 1;
    l.threads = threads;
    l.shared_bytes = 8192;
    l.seed = seed;
    return emulator::run(l, kernel);
}

/* The barrier of these kernels; what they copy begins at 1024. */
uint64_t *barrier() { return (uint64_t *)dev::shared(); }
char *tile() { return (char *)dev::shared() + 1024; }

void make_barrier(int count)
{
    if (dev::thread() == 0) {
        dev::mbarrier_init(barrier(), count);
        dev::fence_async();
    }
    dev::sync();
}

enum { X = 24, Y = 7, Z = 3, W = 2 }; /* of a tensor; its boxes */
enum { BOX_X = 16, BOX_Y = 5, BOX_Z = 2, BOX_W = 2, BOX = BOX_X * BOX_Y * BOX_Z * BOX_W };

/* A box of a tensor of four axes to shared memory and, moved, to another tensor. */
void test_boxes(uint64_t seed)
{
    std::vector<uint32_t> from(X * Y * Z * W), to(from.size(), 7), expected = to, seen(BOX);
    const struct attn_cuda_tensor t = {from.data(), 4, 4, ATTN_CUDA_PLAIN, {X, Y, Z, W},
                                       {X * 4, X * Y * 4, X * Y * Z * 4},
                                       {BOX_X, BOX_Y, BOX_Z, BOX_W}};
    struct attn_cuda_tensor t2 = t;
    dev::tensor_map map, map2;
    int a[4], b[4];
    t2.data = to.data();
    for (uint32_t &x : from)
        x = (uint32_t)draw();
    for (int i = 0; i < 4; i++) {
        const int each = i ? 1 : 4; /* 16 bytes side by side */
        const uint64_t places = t.size[i] / (uint64_t)each;
        a[i] = ((int)(draw() % 2 * (draw() % places)) - (int)(draw() % 3)) * each;
        b[i] = (int)(draw() % places) * each; /* not before the tensor, where no store begins */
    }
    EXPECT(attn_cuda_make_map(attn_cuda_find_encode(), &t, &map) &&
               attn_cuda_make_map(attn_cuda_find_encode(), &t2, &map2), "maps of four axes");
    const std::string wrong = run_block(32, seed, [&] {
        make_barrier(1);
        if (dev::elect()) {
            dev::mbarrier_expect(barrier(), BOX * 4);
            dev::load_tensor(tile(), &map, barrier(), a[0], a[1], a[2], a[3]);
            dev::mbarrier_wait(barrier(), 0);
            memcpy(seen.data(), tile(), BOX * 4);
            dev::store_tensor(&map2, tile(), b[0], b[1], b[2], b[3]);
            dev::commit_stores();
            dev::wait_stores_read<0>();
            memset(tile(), 0, BOX * 4);
            dev::wait_stores<0>();
        }
    });
    bool same = true;
    for (int n = 0; n < BOX; n++) {
        const int in[4] = {n % BOX_X, n / BOX_X % BOX_Y, n / BOX_X / BOX_Y % BOX_Z,
                           n / BOX_X / BOX_Y / BOX_Z};
        bool inside[2] = {true, true};
        size_t at[2] = {0, 0};
        for (int i = 3; i >= 0; i--)
            for (int k = 0; k < 2; k++) {
                const int x = (k ? b : a)[i] + in[i];
                inside[k] = inside[k] && x >= 0 && x < (int)t.size[i];
                at[k] = at[k] * t.size[i] + (size_t)x;
            }
        const uint32_t x = inside[0] ? from[at[0]] : 0;
        same = same && seen[(size_t)n] == x;
        if (inside[1])
            expected[at[1]] = x;
    }
    EXPECT(wrong.empty() && same && to == expected, "boxes, seed %d: %s", (int)seed, wrong.c_str());
}

/* Bytes side by side, there and back. */
void test_bulk(uint64_t seed)
{
    alignas(16) char from[512], to[512];
    for (char &x : from)
        x = (char)draw();
    const std::string wrong = run_block(64, seed, [&] {
        make_barrier(1);
        if (dev::thread() == 40) {
            dev::mbarrier_expect(barrier(), sizeof from);
            dev::load_bulk(tile(), from, sizeof from, barrier());
        }
        dev::mbarrier_wait(barrier(), 0);
        if (dev::thread() == 3) {
            dev::store_bulk(to, tile(), sizeof to);
            dev::commit_stores();
            dev::wait_stores<0>();
        }
        dev::sync();
        if (dev::thread() == 0)
            dev::mbarrier_invalidate(barrier());
    });
    EXPECT(wrong.empty() && memcmp(to, from, sizeof to) == 0, "bulk copies, seed %d: %s",
           (int)seed, wrong.c_str());
}

/* The driver's limits. */
void test_encode()
{
    alignas(16) static char data[64];
    const struct attn_cuda_tensor sound = {data,    2,    2,      ATTN_CUDA_SWIZZLE_32,
                                           {16, 2}, {32}, {16, 2}};
    struct attn_cuda_tensor t[6] = {sound, sound, sound, sound, sound, sound};
    dev::tensor_map map;
    EXPECT(attn_cuda_make_map(emulator::encode_tiled, &sound, &map), "a sound map");
    EXPECT(!attn_cuda_make_map(nullptr, &sound, &map), "a map without a driver");
    t[0].data = data + 2;
    t[1].stride[0] = 36;
    t[2].box[1] = 257;
    t[3].box[0] = 8; /* not the swizzle's row */
    t[4].size[1] = 0;
    t[5].rank = 6;
    for (const struct attn_cuda_tensor &x : t)
        EXPECT(!attn_cuda_make_map(emulator::encode_tiled, &x, &map), "map %d", (int)(&x - t));
}

/* ---- Wrong uses, told by name --------------------------------------------------------------- */

void expect_told(const std::string &wrong, const char *what)
{
    EXPECT(wrong.find(what) != std::string::npos, "%s: \"%s\"", what, wrong.c_str());
}

void test_barrier_reports()
{
    expect_told(run_block(32, 0, [] { dev::mbarrier_arrive(barrier()); }), "no mbarrier at byte 0");
    expect_told(run_block(32, 0, [] {
        make_barrier(2);
        dev::mbarrier_wait(barrier(), 0);
    }), "wait at the mbarrier at byte 0, parity 0, where 2 arrivals and 0 bytes are to come");
    expect_told(run_block(32, 0, [] {
        make_barrier(1);
        if (dev::thread() == 5)
            *barrier() = 1;
        dev::sync();
        dev::mbarrier_wait(barrier(), 1);
    }), "has been written over");
    expect_told(run_block(32, 0, [] {
        make_barrier(1);
        dev::mbarrier_init(barrier(), 1);
    }), "there is one at byte 0");
    expect_told(run_block(32, 0, [] {
        if (dev::thread() == 0)
            dev::mbarrier_init((uint64_t *)(tile() + 4), 1);
    }), "mbarrier_init: at byte 1028");
}

void test_copy_reports()
{
    alignas(16) static const char data[64] = {0};
    expect_told(run_block(32, 0, [] {
        make_barrier(1);
        if (dev::thread() == 0) {
            dev::mbarrier_expect(barrier(), 64);
            dev::load_bulk(tile(), data, 64, barrier());
        }
    }), "before its bulk copies have landed");
    expect_told(run_block(32, 0, [] {
        make_barrier(1);
        dev::load_bulk(tile() + 8, data, 64, barrier());
    }), "not aligned");
    expect_told(run_block(32, 0, [] {
        make_barrier(1);
        dev::load_bulk(tile() + 7168, data, 64, barrier());
    }), "not in shared memory");
    expect_told(run_block(32, 0, [] { /* over what is stored and not fenced */
        make_barrier(1);
        tile()[3] = 1;
        dev::load_bulk(tile(), data, 64, barrier());
    }), "byte 1024 of shared memory has been stored without fence_async()");
    expect_told(run_block(32, 0, [] {
        make_barrier(1);
        dev::load_tensor(tile(), (const dev::tensor_map *)data, barrier(), 0, 0);
    }), "no tensor map");
    const struct attn_cuda_tensor t = {data, 2, 2, ATTN_CUDA_PLAIN, {24, 1}, {48}, {8, 1}};
    dev::tensor_map map;
    EXPECT(attn_cuda_make_map(attn_cuda_find_encode(), &t, &map), "a map of two axes");
    expect_told(run_block(32, 0, [&] {
        make_barrier(1);
        dev::load_tensor(tile(), &map, barrier(), 12, 0);
    }), "column 12 is not aligned to 16 bytes");
    expect_told(run_block(32, 0, [&] {
        dev::store_tensor(&map, tile(), -1, 0);
    }), "column -1 is not aligned to 16 bytes");
    expect_told(run_block(32, 0, [&] {
        dev::store_tensor(&map, tile(), 0, -1);
    }), "axis 1 begins at -1");
}

/* A copy to this place while a product reads 2048 bytes from the tile's first on, and 256 from byte
 * 4096 on, whether it has been computed or not. */
std::string copy_under_product(uint64_t seed, int at)
{
    alignas(16) static const char data[64] = {0};
    return run_block(128, seed, [=] {
        float sums[4] = {0};
        make_barrier(1);
        dev::hold<4>(sums);
        dev::wg_begin();
        dev::wg_multiply_bf16<8, false>(sums, dev::matrix_at<0>(tile(), 128, 256),
                                        dev::matrix_at<0>(tile() + 4096, 128, 256), false);
        dev::wg_commit();
        dev::sync();
        if (dev::thread() == 0) {
            dev::mbarrier_expect(barrier(), 64);
            dev::load_bulk(tile() + at, data, 64, barrier());
        }
        dev::sync(); /* all warps still do */
        dev::wg_wait<0>();
        dev::hold<4>(sums);
        dev::mbarrier_wait(barrier(), 0);
        dev::sync();
        if (dev::thread() == 0)
            dev::mbarrier_invalidate(barrier());
    });
}

void test_product_reports()
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        for (int at : {0, 1984, 4096, 4288})
            expect_told(copy_under_product(seed, at), "which products under way read");
        for (int at : {2048, 4032, 4352}) {
            const std::string wrong = copy_under_product(seed, at);
            EXPECT(wrong.empty(), "a copy beside a product, seed %d: %s", (int)seed, wrong.c_str());
        }
    }
}

void test_register_reports()
{
    expect_told(run_block(128, 0, [] { dev::lower_registers<20>(); }), "20 registers");
    expect_told(run_block(384, 0, [] { dev::raise_registers<160>(); }), "raised to 160");
    expect_told(run_block(256, 0, [] {
        if (dev::warp() == 2)
            dev::lower_registers<24>();
    }), "warps of a warpgroup with");
}

/* All instructions on the same numbers: in whatever order, the same bits; and a bit that differs is
 * found. */
void test_conformance()
{
    using namespace conformance_sm90;
    std::vector<uint32_t> inputs(INPUTS * ALL), first(RESULTS * ALL);
    draw_inputs(inputs.data(), 1);
    std::string wrong = emulate(inputs.data(), first.data(), 0);
    EXPECT(wrong.empty(), "conformance: %s", wrong.c_str());
    for (uint64_t seed = 1; seed < 4; seed++) {
        std::vector<uint32_t> results(first.size());
        wrong = emulate(inputs.data(), results.data(), seed);
        EXPECT(wrong.empty() && results == first, "conformance, seed %d: %s", (int)seed,
               wrong.c_str());
    }
    for (int r = 0; r < RESULTS; r++) {
        const uint32_t *const sound = &first[(size_t)r * ALL];
        std::vector<uint32_t> changed(sound, sound + ALL);
        bool any = false;
        for (uint32_t x : changed)
            any = any || x != 0;
        EXPECT(any && *difference(r, sound, sound) == 0, "%s", name(r));
        changed[WORDS] ^= 1u << 24;
        EXPECT(*difference(r, changed.data(), sound) != 0, "%s: a difference passes", name(r));
    }
}

} // namespace

int main()
{
    report_begin("sm90");
    for (uint64_t seed = 0; seed < 40; seed++) {
        test_boxes(seed);
        test_bulk(seed);
    }
    test_encode();
    test_conformance();
    test_barrier_reports();
    test_copy_reports();
    test_product_reports();
    test_register_reports();
    test_swizzles<false, false>();
    test_swizzles<true, false>();
    test_swizzles<true, true>();
    test_faults(std::make_integer_sequence<int, product_sm90::FAULTS>());
    return report_end();
}
