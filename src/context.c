/* SPDX-License-Identifier: BSD-3-Clause */
/* Contexts: options and environment variables become settings; messages. */
#include "context.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/isa.h"
#include "parallel.h"

/* Of calls with a null context. */
static _Thread_local struct attn_message thread_message;

attn_status attn_say(struct attn_message *m, attn_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(m->text, sizeof m->text, format, args);
    va_end(args);
    return status;
}

const char *attn_backend_name(attn_backend backend)
{
    switch (backend) {
    case ATTN_BACKEND_DEFAULT: return "default";
    case ATTN_BACKEND_AUTO: return "auto";
    case ATTN_BACKEND_CPU: return "cpu";
    case ATTN_BACKEND_EAGER: return "eager";
    case ATTN_BACKEND_CUDA: return "cuda";
    }
    return NULL;
}

static void *default_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void default_release(void *user, void *data, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(data);
}

static attn_status backend_from_env(struct attn_settings *s, struct attn_message *m)
{
    const char *name = getenv("ATTN_BACKEND");
    s->backend = ATTN_BACKEND_AUTO;
    if (!name || !*name)
        return ATTN_OK;
    for (int b = ATTN_BACKEND_AUTO; b <= ATTN_BACKEND_CUDA; b++)
        if (strcmp(name, attn_backend_name((attn_backend)b)) == 0) {
            s->backend = (attn_backend)b;
            return ATTN_OK;
        }
    return attn_say(m, ATTN_INVALID_ENUM, "environment ATTN_BACKEND: no backend is named \"%.40s\"",
                    name);
}

static attn_status set_isa(struct attn_settings *s, const char *field, const char *name,
                           struct attn_message *m)
{
    for (int32_t n = 0; attn_isa_name(n, NULL); n++)
        if (strcmp(attn_isa_name(n, NULL), name) == 0) {
            int32_t usable;
            attn_isa_name(n, &usable);
            s->isa = n;
            return usable ? ATTN_OK
                          : attn_say(m, ATTN_UNSUPPORTED, "%s: this machine cannot run \"%.40s\"",
                                     field, name);
        }
    return attn_say(m, ATTN_UNSUPPORTED, "%s: no instruction set \"%.40s\" is built in", field,
                    name);
}

static attn_status settings_init(struct attn_settings *s, const attn_options *o,
                                 struct attn_message *m)
{
    s->backend = o->backend;
    s->threads = o->threads > 0 ? o->threads : attn_default_threads();
    if (s->threads > attn_most_threads())
        s->threads = attn_most_threads();
    s->stream = o->stream;
    s->ferry = NULL;
    s->keys = NULL;
    s->allocator = o->allocator;
    if (!s->allocator.alloc) {
        s->allocator.alloc = default_alloc;
        s->allocator.release = default_release;
    }

    attn_status status = ATTN_OK;
    const char *isa = getenv("ATTN_ISA");
    if (o->isa)
        status = set_isa(s, "options.isa", o->isa, m);
    else if (isa && *isa)
        status = set_isa(s, "environment ATTN_ISA", isa, m);
    else
        s->isa = attn_isa_best();
    if (status == ATTN_OK && s->backend == ATTN_BACKEND_DEFAULT)
        status = backend_from_env(s, m);
    return status;
}

static attn_status check_options(const attn_options *o, struct attn_message *m)
{
    if (o->size != sizeof *o)
        return attn_say(m, ATTN_INVALID_SIZE, "options.size: %zu, expected %zu", o->size,
                        sizeof *o);
    if (!attn_backend_name(o->backend))
        return attn_say(m, ATTN_INVALID_ENUM, "options.backend: %d is no backend", (int)o->backend);
    if (o->threads < 0)
        return attn_say(m, ATTN_INVALID_VALUE, "options.threads: %d is negative", (int)o->threads);
    if (!o->allocator.alloc != !o->allocator.release)
        return attn_say(m, ATTN_INVALID_NULL, "options.allocator: alloc and release go together");
    return ATTN_OK;
}

attn_status attn_context_create(attn_context **context, const attn_options *options)
{
    thread_message.text[0] = 0;
    if (!context)
        return attn_say(&thread_message, ATTN_INVALID_NULL, "context: null");
    *context = NULL;

    const attn_options defaults = attn_options_init();
    const attn_options *o = options ? options : &defaults;
    struct attn_settings settings;
    attn_status status = check_options(o, &thread_message);
    if (status == ATTN_OK)
        status = settings_init(&settings, o, &thread_message);
    if (status != ATTN_OK)
        return status;

    attn_context *c =
        settings.allocator.alloc(settings.allocator.user, sizeof *c, ATTN_ALIGN);
    if (!c)
        return attn_say(&thread_message, ATTN_NO_MEMORY, "no memory for a context");
    c->settings = settings;
    c->ferry = (struct attn_ferry){.bytes = 0};
    c->settings.ferry = &c->ferry;
    c->keys = 0;
    c->settings.keys = &c->keys;
    c->message.text[0] = 0;
    *context = c;
    return ATTN_OK;
}

void attn_context_destroy(attn_context *context)
{
    if (!context)
        return;
    const attn_allocator a = context->settings.allocator;
    attn_ferry_release(&context->ferry);
    a.release(a.user, context, sizeof *context);
}

const char *attn_last_message(const attn_context *context)
{
    return context ? context->message.text : thread_message.text;
}

attn_status attn_call_begin(struct attn_call *call, attn_context *context)
{
    if (context) {
        call->settings = &context->settings;
        call->message = &context->message;
        call->message->text[0] = 0;
        return ATTN_OK;
    }
    const attn_options defaults = attn_options_init();
    call->settings = &call->fallback;
    call->message = &thread_message;
    call->message->text[0] = 0;
    return settings_init(&call->fallback, &defaults, call->message);
}
