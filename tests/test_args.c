/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Wrong arguments: each has its own status and a message with the field and its value, and nothing
 * is written. What a backend does not offer is refused by name. The explanation and the workspace
 * query say the same as the call.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "args_more.h"
#include "context.h"
#include "expect.h"

static struct buffers before;

/* Whether `message` holds `word`, not as a part of a longer word. */
static bool says(const char *message, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = message; n && (at = strstr(at, word)); at++) {
        const bool starts = at == message || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (starts && !isalnum((unsigned char)at[n]) && at[n] != '_')
            return true;
    }
    return n == 0 && message[0];
}

static attn_desc changed(enum base base, const struct change *changes)
{
    attn_desc d = sound_desc(base);
    change_desc(&d, changes);
    return d;
}

static attn_status compute(attn_context *c, const attn_desc *d, attn_pass pass)
{
    return pass == ATTN_PASS_FORWARD ? attn_forward(c, d) : attn_backward(c, d);
}

static void expect_status(const char *name, const char *what, attn_context *c, attn_status got,
                          attn_status want)
{
    EXPECT(got == want, "%s: %s answers %s (\"%s\"), expected %s", name, what,
           attn_status_name(got), attn_last_message(c), attn_status_name(want));
}

static void expect_untouched(const char *name, const char *what)
{
    EXPECT(memcmp(&before, &buf, sizeof buf) == 0, "%s: %s wrote something", name, what);
    buffers_fill();
}

/* ------------------------------------------------------------------------------------------------
 * Wrong for any backend
 * --------------------------------------------------------------------------------------------- */

static attn_desc wrong_desc(const struct wrong *w, attn_pass pass)
{
    attn_desc d = pass == ATTN_PASS_FORWARD ? sound_desc(w->base) : sound_backward(w->base);
    change_desc(&d, w->changes);
    return d;
}

static void wrong_call(const struct wrong *w, attn_pass pass, attn_context *c, const char *backend)
{
    const attn_desc d = wrong_desc(w, pass);
    const attn_status status = compute(c, &d, pass);
    const char *message = attn_last_message(c);
    expect_status(w->name, backend, c, status, w->status);
    if (status == w->status) {
        EXPECT(says(message, w->field), "%s: message \"%s\" does not name %s", w->name, message,
               w->field);
        EXPECT(!w->value || says(message, w->value), "%s: message \"%s\" does not say %s", w->name,
               message, w->value);
    }
    expect_untouched(w->name, backend);
}

static void wrong_question(const struct wrong *w, attn_pass pass, attn_context *c)
{
    const attn_desc d = wrong_desc(w, pass);
    const attn_status want = w->tensors ? ATTN_OK : w->status;
    attn_explanation e = attn_explanation_init();
    attn_explanation blank = e;
    size_t bytes = 12345;
    expect_status(w->name, "explain", c, attn_explain(c, &d, pass, &e), want);
    EXPECT(want == ATTN_OK || memcmp(&e, &blank, sizeof e) == 0, "%s: explain wrote something",
           w->name);
    /* Some tensor tests use a feature that no backend has: then there is no size either. */
    const attn_status got = attn_workspace_size(c, &d, pass, &bytes);
    if (want != ATTN_OK || got != ATTN_UNSUPPORTED)
        expect_status(w->name, "workspace_size", c, got, want);
    EXPECT(got == ATTN_OK || bytes == 12345, "%s: workspace_size wrote something", w->name);
    expect_untouched(w->name, "a question");
}

static void test_wrongs(attn_context *c, bool questions, const char *backend)
{
    const struct {
        const struct wrong *list;
        int count;
        attn_pass pass;
    } tables[] = {{wrongs, wrongs_count, ATTN_PASS_FORWARD},
                  {feature_wrongs, feature_wrongs_count, ATTN_PASS_FORWARD},
                  {backward_wrongs, backward_wrongs_count, ATTN_PASS_BACKWARD}};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (int n = 0; n < tables[t].count; n++) {
            wrong_call(&tables[t].list[n], tables[t].pass, c, backend);
            if (questions)
                wrong_question(&tables[t].list[n], tables[t].pass, c);
        }
}

/* ------------------------------------------------------------------------------------------------
 * Sound, offered or not
 * --------------------------------------------------------------------------------------------- */

static bool offers(const struct use *u, attn_backend backend)
{
    switch (backend) {
    case ATTN_BACKEND_CPU: return u->cpu;
    case ATTN_BACKEND_EAGER: return u->eager && eager_built();
    case ATTN_BACKEND_CUDA:
        return u->cpu && u->pass == ATTN_PASS_FORWARD && strcmp(u->field, "probs_fn") != 0 &&
               strcmp(u->field, "key_sums") != 0;
    case ATTN_BACKEND_AUTO: return u->cpu || (u->eager && eager_built());
    default: return false;
    }
}

/* The field is what stands before a comma; what comes after tells the case. */
static bool names_field(const char *message, const struct use *u)
{
    char field[64];
    snprintf(field, sizeof field, "%.*s", (int)strcspn(u->field, ","), u->field);
    return says(message, field);
}

static void use_call(const struct use *u, attn_context *c, attn_backend backend)
{
    const attn_desc d = changed(u->base, u->changes);
    const attn_status want = offers(u, backend) ? ATTN_OK : ATTN_UNSUPPORTED;
    const attn_status got = compute(c, &d, u->pass);
    const char *message = attn_last_message(c);
    expect_status(u->field, attn_backend_name(backend), c, got, want);
    if (got == ATTN_OK) {
        EXPECT(!message[0], "%s: message \"%s\" after a success", u->field, message);
        buffers_fill();
        return;
    }
    EXPECT(got != want || names_field(message, u), "%s: message \"%s\" does not name it", u->field,
           message);
    expect_untouched(u->field, attn_backend_name(backend));
}

/* Why a backend serves no call at all; ATTN_OK: it does. */
static attn_status absence(attn_backend backend)
{
    if (backend == ATTN_BACKEND_EAGER)
        return eager_built() ? ATTN_OK : ATTN_NO_BACKEND;
    return backend == ATTN_BACKEND_CUDA ? cuda_status() : ATTN_OK;
}

static void use_candidate(const struct use *u, const attn_candidate *c)
{
    const attn_status absent = absence(c->backend);
    if (absent != ATTN_OK) {
        EXPECT(c->status == absent && c->reason[0], "%s: explain says %s of %s", u->field,
               attn_status_name(c->status), attn_backend_name(c->backend));
        return;
    }
    const attn_status want = offers(u, c->backend) ? ATTN_OK : ATTN_UNSUPPORTED;
    EXPECT(c->status == want, "%s: explain says %s of %s, expected %s", u->field,
           attn_status_name(c->status), attn_backend_name(c->backend), attn_status_name(want));
    if (c->status == ATTN_OK)
        EXPECT(c->kernel[0] && !c->reason[0], "%s: explain names no kernel of %s", u->field,
               attn_backend_name(c->backend));
    else
        EXPECT(!c->kernel[0] && names_field(c->reason, u), "%s: explain's reason of %s is \"%s\"",
               u->field, attn_backend_name(c->backend), c->reason);
}

static void use_question(const struct use *u, attn_context *c, attn_backend backend)
{
    const attn_desc d = changed(u->base, u->changes);
    const bool served = offers(u, backend);
    attn_explanation e = attn_explanation_init();
    size_t bytes = 12345;
    const attn_status status = attn_explain(c, &d, u->pass, &e);
    expect_status(u->field, "explain", c, status, ATTN_OK);
    if (status != ATTN_OK)
        return;
    EXPECT(e.count == 3, "%s: explain tells of %d backends", u->field, (int)e.count);
    for (int n = 0; n < e.count; n++)
        use_candidate(u, &e.candidates[n]);
    expect_status(u->field, "workspace_size", c, attn_workspace_size(c, &d, u->pass, &bytes),
                  served ? ATTN_OK : ATTN_UNSUPPORTED);
    EXPECT((e.chosen >= 0) == served, "%s: explain chooses %d on %s", u->field, (int)e.chosen,
           attn_backend_name(backend));
    if (e.chosen >= 0) {
        const attn_candidate *chosen = &e.candidates[e.chosen];
        EXPECT(backend == ATTN_BACKEND_AUTO || chosen->backend == backend,
               "%s: explain chooses %s", u->field, attn_backend_name(chosen->backend));
        EXPECT(chosen->workspace == bytes, "%s: explain says %zu bytes, workspace_size %zu",
               u->field, chosen->workspace, bytes);
    } else {
        EXPECT(bytes == 12345, "%s: workspace_size wrote something", u->field);
    }
    expect_untouched(u->field, "a question");
}

static void test_backend(attn_backend backend)
{
    const attn_status absent = absence(backend);
    if (absent != ATTN_OK) {
        report_skip("%s backend: %s", attn_backend_name(backend), attn_status_name(absent));
        return;
    }
    attn_context *c = context_of(backend);
    test_wrongs(c, true, attn_backend_name(backend));
    for (int n = 0; n < uses_count; n++) {
        use_call(&uses[n], c, backend);
        use_question(&uses[n], c, backend);
    }
    attn_context_destroy(c);
}

int main(void)
{
    report_begin("args");
    unsetenv("ATTN_BACKEND");
    buffers_fill();
    before = buf;
    test_wrongs(NULL, false, "null context");
    test_backend(ATTN_BACKEND_AUTO);
    test_backend(ATTN_BACKEND_CPU);
    test_backend(ATTN_BACKEND_EAGER);
    test_backend(ATTN_BACKEND_CUDA);
    test_contexts();
    test_calls();
    test_slices();
    test_keep();
    test_gradients();
    test_forms();
    return report_end();
}
