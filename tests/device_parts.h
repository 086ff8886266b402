/* SPDX-License-Identifier: BSD-3-Clause */
/* Parts of the suite device that stand on their own. */
#ifndef TESTS_DEVICE_PARTS_H
#define TESTS_DEVICE_PARTS_H

/* device_contexts.c; to be the first of all calls on a device. */
void test_contexts(void);

/* device_kernels.c */
void test_kernels(void);

/* device_hidden.c */
void test_hidden_blocks(void);

#endif
