/* SPDX-License-Identifier: BSD-3-Clause */
#include "demo_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char no_memory[] = "no memory";

static const char *read_file(struct demo_text *t, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return strerror(errno);
    t->bytes = malloc(DEMO_BYTES + 1);
    if (!t->bytes) {
        fclose(file);
        return no_memory;
    }
    errno = 0;
    t->size = fread(t->bytes, 1, DEMO_BYTES + 1, file);
    const char *wrong = ferror(file) ? strerror(errno) : NULL;
    fclose(file);
    if (t->size > DEMO_BYTES) {
        t->size = DEMO_BYTES;
        t->cut = true;
    }
    return wrong;
}

enum kind {
    SPACE,
    LETTER,
    IDEOGRAPH, /* a token of its own */
    STOP,      /* ends a sentence where a space follows */
    FULL_STOP, /* ends a sentence in scripts that put no space behind it */
    CLOSER,    /* a quote or bracket that may stand behind a stop */
    OTHER
};

struct character {
    enum kind kind;
    size_t size; /* bytes */
};

/* The code point at `s`; *size its bytes. A byte that starts none stands for itself. */
static uint32_t decode(const unsigned char *s, size_t left, size_t *size)
{
    static const struct {
        unsigned char mask, lead;
    } forms[] = {{0x80, 0x00}, {0xe0, 0xc0}, {0xf0, 0xe0}, {0xf8, 0xf0}};
    for (size_t n = 0; n < 4 && n < left; n++) {
        if ((s[0] & forms[n].mask) != forms[n].lead)
            continue;
        uint32_t code = s[0] & (unsigned char)~forms[n].mask;
        size_t i = 1;
        while (i <= n && (s[i] & 0xc0) == 0x80)
            code = code << 6 | (s[i++] & 0x3f);
        if (i <= n)
            break;
        *size = n + 1;
        return code;
    }
    *size = 1;
    return s[0];
}

static bool among(uint32_t code, const uint32_t *list)
{
    while (*list && *list != code)
        list++;
    return *list != 0;
}

static struct character character_at(const struct demo_text *t, size_t at)
{
    static const uint32_t stops[] = {'.', '!', '?', 0x2026, 0};
    static const uint32_t full_stops[] = {0x3002, 0xff01, 0xff1f, 0x0964, 0};
    static const uint32_t closers[] = {'"',    '\'',   ')',    ']',    0x201d, 0x2019,
                                       0x00bb, 0x300d, 0x300f, 0xff09, 0};
    struct character c;
    const uint32_t code = decode((const unsigned char *)t->bytes + at, t->size - at, &c.size);
    if (code <= ' ' || code == 0x7f || code == 0xa0 || code == 0x3000 || code == 0xfeff)
        c.kind = SPACE;
    else if (among(code, stops))
        c.kind = STOP;
    else if (among(code, full_stops))
        c.kind = FULL_STOP;
    else if (among(code, closers))
        c.kind = CLOSER;
    else if ((code >= '0' && code <= '9') || ((code | 32) >= 'a' && (code | 32) <= 'z') ||
             (code >= 0xc0 && code < 0x2000))
        c.kind = LETTER;
    else if (code >= 0x3040 && code != 0x30fb && code < 0xff00)
        c.kind = IDEOGRAPH;
    else
        c.kind = code >= 0x2c00 && code < 0x3000 ? LETTER : OTHER;
    return c;
}

struct cutter {
    struct demo_text *t;
    enum demo_unit unit;
    int32_t room; /* tokens and offsets that the arrays hold */
    int32_t from; /* first token of the sequence that is open */
    bool splitting;
};

static void end_sequence(struct cutter *c)
{
    struct demo_text *t = c->t;
    if (t->tokens > c->from)
        t->cu_seqlens[++t->sequences] = c->from = t->tokens;
    c->splitting = false;
}

static bool grow(struct cutter *c)
{
    struct demo_text *t = c->t;
    if (t->tokens < c->room)
        return true;
    c->room = c->room ? 2 * c->room : 4096;
    const size_t n = (size_t)c->room + 2;
    size_t *starts = realloc(t->starts, n * sizeof *starts);
    t->starts = starts ? starts : t->starts;
    size_t *ends = realloc(t->ends, n * sizeof *ends);
    t->ends = ends ? ends : t->ends;
    int32_t *cu = realloc(t->cu_seqlens, n * sizeof *cu);
    t->cu_seqlens = cu ? cu : t->cu_seqlens;
    if (!starts || !ends || !cu)
        return false;
    cu[0] = 0;
    return true;
}

static bool add_token(struct cutter *c, size_t start, size_t end)
{
    struct demo_text *t = c->t;
    if (!grow(c))
        return false;
    if (t->tokens - c->from == DEMO_LONGEST) {
        t->split += !c->splitting;
        end_sequence(c);
        c->splitting = true;
    }
    t->starts[t->tokens] = start;
    t->ends[t->tokens++] = end;
    return true;
}

/* End of the token that starts at `at`: a word, an ideograph, or a run of the same mark. */
static size_t token_end(const struct demo_text *t, size_t at, struct character first)
{
    size_t end = at + first.size;
    while (end < t->size && first.kind != IDEOGRAPH && end - at < 64) {
        const struct character next = character_at(t, end);
        const bool same = next.size == first.size &&
                          memcmp(t->bytes + at, t->bytes + end, next.size) == 0;
        const bool apostrophe = first.kind == LETTER && t->bytes[end] == '\'' &&
                                end + 1 < t->size && character_at(t, end + 1).kind == LETTER;
        if (first.kind == LETTER ? next.kind != LETTER && !apostrophe : !same)
            break;
        end += next.size;
    }
    return end;
}

/* Passes over space; true if it holds an empty line. */
static bool skip_space(const struct demo_text *t, size_t *at)
{
    int lines = 0;
    while (*at < t->size) {
        const struct character c = character_at(t, *at);
        if (c.kind != SPACE)
            break;
        lines += t->bytes[*at] == '\n';
        *at += c.size;
    }
    return lines > 1;
}

static bool cut(struct cutter *c)
{
    struct demo_text *t = c->t;
    bool stopped = false; /* the last token was a stop, or closes behind one */
    for (size_t at = 0; at < t->size;) {
        const struct character first = character_at(t, at);
        if (first.kind == SPACE) {
            const bool empty_line = skip_space(t, &at);
            const bool goes_on = at < t->size && t->bytes[at] >= 'a' && t->bytes[at] <= 'z';
            if (empty_line || (stopped && !goes_on && c->unit == DEMO_SENTENCES))
                end_sequence(c);
            stopped = false;
            continue;
        }
        const size_t end = token_end(t, at, first);
        if (!add_token(c, at, end))
            return false;
        stopped = first.kind == STOP || (stopped && first.kind == CLOSER);
        if (first.kind == FULL_STOP && c->unit == DEMO_SENTENCES)
            end_sequence(c);
        at = end;
    }
    end_sequence(c);
    return true;
}

/* Lengths; leaves out what does not fit the padded batch. */
static void measure(struct demo_text *t)
{
    int32_t n = 0, longest = 0;
    for (; n < t->sequences; n++) {
        const int32_t length = t->cu_seqlens[n + 1] - t->cu_seqlens[n];
        const int32_t new_longest = length > longest ? length : longest;
        if ((int64_t)(n + 1) * new_longest > DEMO_PADDED_ROWS)
            break;
        longest = new_longest;
        if (n == 0 || length < t->shortest)
            t->shortest = length;
    }
    t->longest = longest;
    t->left_out = t->sequences - n;
    t->sequences = n;
    t->tokens = n ? t->cu_seqlens[n] : 0;
}

const char *demo_text_read(struct demo_text *t, const char *path, enum demo_unit unit)
{
    struct cutter c = {t, unit, 0, 0, false};
    memset(t, 0, sizeof *t);
    const char *wrong = read_file(t, path);
    if (!wrong && !cut(&c))
        wrong = no_memory;
    if (!wrong)
        measure(t);
    return wrong;
}

void demo_text_free(struct demo_text *t)
{
    free(t->bytes);
    free(t->starts);
    free(t->ends);
    free(t->cu_seqlens);
}
