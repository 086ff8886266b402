/* SPDX-License-Identifier: BSD-3-Clause */
/* Options, environment variables, and the backend that they choose. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "args_more.h"
#include "context.h"
#include "expect.h"

/* The backend that serves a plain call on a context; -1 for none. */
static int serving(attn_context *c)
{
    const attn_desc d = sound_desc(PADDED);
    attn_explanation e = attn_explanation_init();
    if (attn_explain(c, &d, ATTN_PASS_FORWARD, &e) != ATTN_OK || e.chosen < 0)
        return -1;
    return (int)e.candidates[e.chosen].backend;
}

bool eager_built(void)
{
    static int built = -1;
    if (built < 0) {
        attn_context *c = context_of(ATTN_BACKEND_EAGER);
        built = serving(c) == ATTN_BACKEND_EAGER;
        attn_context_destroy(c);
    }
    return built;
}

attn_status cuda_status(void)
{
    const attn_desc d = sound_desc(PADDED);
    attn_explanation e = attn_explanation_init();
    attn_explain(NULL, &d, ATTN_PASS_FORWARD, &e);
    for (int32_t n = 0; n < e.count; n++)
        if (e.candidates[n].backend == ATTN_BACKEND_CUDA)
            return e.candidates[n].status;
    return ATTN_INVALID_NULL;
}

static int cuda_or_none(void) { return cuda_status() == ATTN_OK ? ATTN_BACKEND_CUDA : -1; }

static void no_allocation(void *user, void *data, size_t bytes)
{
    (void)user;
    (void)data;
    (void)bytes;
}

static void expect_refused(const char *name, const attn_options *o, attn_status want,
                           const char *field)
{
    attn_context *c = (attn_context *)&buf;
    const attn_status got = attn_context_create(&c, o);
    const char *message = attn_last_message(NULL);
    EXPECT(got == want, "options, %s: %s, expected %s", name, attn_status_name(got),
           attn_status_name(want));
    EXPECT(got == ATTN_OK || !c, "options, %s: a context in spite of %s", name,
           attn_status_name(got));
    EXPECT(strstr(message, field) != NULL, "options, %s: message \"%s\" does not name %s", name,
           message, field);
    if (got == ATTN_OK)
        attn_context_destroy(c);
}

static void test_wrong_options(void)
{
    attn_options o = attn_options_init();
    o.size = 0;
    expect_refused("size 0", &o, ATTN_INVALID_SIZE, "size");
    o.size = sizeof o + 8;
    expect_refused("size of no header", &o, ATTN_INVALID_SIZE, "size");
    o = attn_options_init();
    o.backend = (attn_backend)17;
    expect_refused("backend 17", &o, ATTN_INVALID_ENUM, "17");
    o = attn_options_init();
    o.threads = -1;
    expect_refused("threads -1", &o, ATTN_INVALID_VALUE, "threads");
    o = attn_options_init();
    o.isa = "no such set";
    expect_refused("unknown isa", &o, ATTN_UNSUPPORTED, "no such set");
    o = attn_options_init();
    o.allocator.release = no_allocation;
    expect_refused("half an allocator", &o, ATTN_INVALID_NULL, "allocator");
    EXPECT(attn_context_create(NULL, NULL) == ATTN_INVALID_NULL, "a context into nowhere");
    attn_context_destroy(NULL);
}

#if defined(__x86_64__)
/* The place of a set in the list, or -1. */
static int32_t place_of(const char *isa)
{
    const char *name;
    for (int32_t n = 0; (name = attn_isa_name(n, NULL)) != NULL; n++)
        if (strcmp(name, isa) == 0)
            return n;
    return -1;
}

/* Which of AVX-512 and AVX512-BF16 is faster depends on the processor. */
static void test_order(void)
{
    const int32_t plain = place_of("avx512"), dots = place_of("avx512bf16");
    const bool slow_dots = __builtin_cpu_is("intel");
    EXPECT(plain < 0 || dots < 0 || (slow_dots ? dots + 1 == plain : plain + 1 == dots),
           "avx512 is set %d, avx512bf16 set %d", (int)plain, (int)dots);
}
#else
static void test_order(void) {}
#endif

static void test_isas(void)
{
    int32_t usable = -1;
    const char *first = attn_isa_name(0, &usable), *name;
#if defined(__aarch64__)
    const char *const baseline = first && strcmp(first, "neon") == 0 ? "neon" : "scalar";
#else
    const char *const baseline = "scalar";
#endif
    EXPECT(first && strcmp(first, baseline) == 0 && usable == 1,
           "%s is not the first instruction set", baseline);
    for (int32_t n = 1; (name = attn_isa_name(n, NULL)) != NULL; n++)
        EXPECT(strcmp(name, "scalar") != 0, "scalar is not the first instruction set");
    EXPECT(!attn_isa_name(-1, NULL) && !attn_isa_name(INT32_MAX, NULL), "sets past the end");
    for (int32_t n = 0; attn_isa_name(n, &usable); n++) {
        attn_options o = attn_options_init();
        attn_context *c = NULL;
        o.isa = attn_isa_name(n, NULL);
        const attn_status status = attn_context_create(&c, &o);
        EXPECT(status == (usable ? ATTN_OK : ATTN_UNSUPPORTED), "isa %s: %s", o.isa,
               attn_status_name(status));
        attn_context_destroy(c);
        setenv("ATTN_ISA", attn_isa_name(n, NULL), 1);
        EXPECT(attn_context_create(&c, NULL) == status, "ATTN_ISA=%s is not the option", o.isa);
        attn_context_destroy(c);
    }
    setenv("ATTN_ISA", "no such set", 1);
    expect_refused("unknown ATTN_ISA", NULL, ATTN_UNSUPPORTED, "ATTN_ISA");
    unsetenv("ATTN_ISA");
}

/* option, environment: the backend that serves. */
static void expect_choice(attn_backend option, const char *environment, int want)
{
    if (environment)
        setenv("ATTN_BACKEND", environment, 1);
    attn_context *c = context_of(option);
    unsetenv("ATTN_BACKEND");
    const int got = serving(c);
    EXPECT(got == want, "option %s, ATTN_BACKEND=%s: backend %d serves, expected %d",
           attn_backend_name(option), environment ? environment : "(none)", got, want);
    attn_context_destroy(c);
}

static void test_choice(void)
{
    const int eager = eager_built() ? ATTN_BACKEND_EAGER : -1;
    expect_choice(ATTN_BACKEND_AUTO, NULL, ATTN_BACKEND_CPU);
    expect_choice(ATTN_BACKEND_DEFAULT, "", ATTN_BACKEND_CPU);
    expect_choice(ATTN_BACKEND_DEFAULT, "auto", ATTN_BACKEND_CPU);
    expect_choice(ATTN_BACKEND_DEFAULT, "cpu", ATTN_BACKEND_CPU);
    expect_choice(ATTN_BACKEND_DEFAULT, "eager", eager);
    expect_choice(ATTN_BACKEND_DEFAULT, "cuda", cuda_or_none());
    expect_choice(ATTN_BACKEND_CPU, "eager", ATTN_BACKEND_CPU);
    expect_choice(ATTN_BACKEND_EAGER, "cpu", eager);
    expect_choice(ATTN_BACKEND_CUDA, "cpu", cuda_or_none());
    expect_choice(ATTN_BACKEND_CPU, "cuda", ATTN_BACKEND_CPU);
    setenv("ATTN_BACKEND", "Cpu ", 1);
    expect_refused("unknown ATTN_BACKEND", NULL, ATTN_INVALID_ENUM, "ATTN_BACKEND");
    unsetenv("ATTN_BACKEND");
}

/* A backend asked for that is not there is an error, not another backend. */
static void test_absent(attn_backend backend, attn_status want)
{
    const attn_desc d = sound_desc(PACKED);
    attn_context *c = context_of(backend);
    const struct buffers before = buf;
    size_t bytes = 12345;
    EXPECT(attn_forward(c, &d) == want, "absent %s: %s", attn_backend_name(backend),
           attn_last_message(c));
    EXPECT(strstr(attn_last_message(c), attn_backend_name(backend)) != NULL,
           "absent %s: message \"%s\"", attn_backend_name(backend), attn_last_message(c));
    EXPECT(attn_workspace_size(c, &d, ATTN_PASS_FORWARD, &bytes) == want && bytes == 12345,
           "absent %s has a workspace", attn_backend_name(backend));
    EXPECT(memcmp(&before, &buf, sizeof buf) == 0, "absent %s wrote something",
           attn_backend_name(backend));
    attn_context_destroy(c);
}

/* Variables are read when a context is made, and at each call on the null context. */
static void test_when_read(void)
{
    attn_context *c = context_of(ATTN_BACKEND_DEFAULT);
    setenv("ATTN_BACKEND", "cuda", 1);
    EXPECT(serving(c) == ATTN_BACKEND_CPU, "a context heeds ATTN_BACKEND after its creation");
    EXPECT(serving(NULL) == cuda_or_none(), "the null context does not heed ATTN_BACKEND");
    setenv("ATTN_BACKEND", "nonsense", 1);
    const attn_desc d = sound_desc(PADDED);
    EXPECT(attn_forward(NULL, &d) == ATTN_INVALID_ENUM, "ATTN_BACKEND=nonsense is accepted");
    unsetenv("ATTN_BACKEND");
    EXPECT(serving(NULL) == ATTN_BACKEND_CPU, "the null context keeps a variable that is gone");
    attn_context_destroy(c);
}

void test_contexts(void)
{
    buffers_fill();
    test_wrong_options();
    test_isas();
    test_order();
    test_choice();
    if (cuda_status() != ATTN_OK)
        test_absent(ATTN_BACKEND_CUDA, cuda_status());
    EXPECT(cuda_status() == ATTN_OK || cuda_status() == ATTN_NO_BACKEND ||
               cuda_status() == ATTN_NO_DEVICE,
           "explain says %s of cuda", attn_status_name(cuda_status()));
    if (!eager_built())
        test_absent(ATTN_BACKEND_EAGER, ATTN_NO_BACKEND);
    test_when_read();
    EXPECT(!attn_backend_name((attn_backend)17), "backend 17 has a name");
    EXPECT(strcmp(attn_status_name(ATTN_INVALID_HEADS), "ATTN_INVALID_HEADS") == 0 &&
               attn_status_name((attn_status)9999) != NULL,
           "names of statuses");
    EXPECT(strcmp(attn_version(), ATTN_VERSION_STRING) == 0, "version %s of the library is not %s",
           attn_version(), ATTN_VERSION_STRING);
}
