/* SPDX-License-Identifier: BSD-3-Clause */
/* Small problems whose lengths, tables, prefixes and offsets may lie in a device's memory, and what
 * else may stand there. */
#ifndef TESTS_DEVICE_PROBLEM_H
#define TESTS_DEVICE_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn/attn.h"
#include "rng.h"

enum { MOST_B = 5, HQ = 2, D = 8, ENTRIES = 512, ALIGN = 64, NAN_BYTE = 0xff };

/* Memory of the device that ends at a guard page. */
struct memory {
    void *base;
    char *data;
    size_t bytes;
};

/* Integers of a call. */
struct array {
    bool given, on_device;
    attn_itype type;
    int64_t n, x[ENTRIES]; /* as they are stored */
    struct memory device;
    _Alignas(8) char host[ENTRIES * 8];
};

struct lengths {
    const char *name;
    attn_layout layout;
    int64_t rows; /* of a packed tensor; S of a padded one */
    int64_t bound; /* max_seqlen */
    int64_t room;  /* of a paged sequence */
    int64_t pages, page_size, max_pages;
    struct array cu, used, table;
    int64_t start[MOST_B], length[MOST_B]; /* as sound arrays have them */
};

struct device_problem {
    int64_t batch, heads_kv, bias_elements;
    bool causal, bias_per_head;
    struct lengths query, key;
    struct array prefix, bias_offset;
    struct memory q, k, v, out, lse, key_mask, bias;
    int64_t bias_at[MOST_B]; /* of sequences that have queries left */
};

/* Memory of so many bytes, full of NAN_BYTE; of so many random numbers in f16. */
struct memory memory_take(size_t bytes);
struct memory memory_of_numbers(struct rng *r, int64_t n);
void memory_give_back(struct memory *m);

/* Whether the host can look at it; kernels run later. */
void memory_open(struct memory *m);
void memory_close(struct memory *m);

/* Nothing stands before the data. */
bool memory_is_clean(const struct memory *m);

/* The numbers to where the call finds them, which then are those that its type has. */
void array_store(struct array *a);
attn_index array_index(const struct array *a);

/* Whether the host cannot read what a side's lengths are made from. */
bool lengths_are_unread(const struct lengths *s);

/* A sound problem; arrays are not stored yet. */
void device_problem_draw(struct rng *r, struct device_problem *p);
void device_problem_each(struct device_problem *p, void (*act)(struct memory *m));

/* Spoils nothing, one number or all of what the host cannot read. */
void device_problem_spoil(struct rng *r, struct device_problem *p);

#endif
