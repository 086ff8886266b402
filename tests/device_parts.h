/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of the suite device. */
#ifndef TESTS_DEVICE_PARTS_H
#define TESTS_DEVICE_PARTS_H

/* device_contexts.c; to be the first of all calls on a device. */
void test_contexts(void);

/* device_failures.c */
void test_failures(void);
void test_pinned(void);

/* device_graphs.c */
void test_graph(void);
void test_graph_lengths(void);
void test_many(void);
void test_wide_table(void);

/* device_kernels.c */
void test_kernels(void);

/* device_hidden.c */
void test_hidden_blocks(void);

#endif
