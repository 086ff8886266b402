/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_DEVICE_HIDDEN_H
#define TESTS_DEVICE_HIDDEN_H

/* A part of the suite device. */
void test_hidden_blocks(void);

#endif
