/* SPDX-License-Identifier: BSD-3-Clause */
/* Counts checks and prints, as the last line, "NAME: P passed, F failed, S skipped". */
#ifndef TESTS_REPORT_H
#define TESTS_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__GNUC__)
#define REPORT_PRINTF __attribute__((format(printf, 1, 2)))
#else
#define REPORT_PRINTF
#endif

void report_begin(const char *name);
void report_pass(void);
void report_fail(const char *format, ...) REPORT_PRINTF; /* one line */
void report_skip(const char *format, ...) REPORT_PRINTF; /* each reason is printed once */

/* How many of a suite's cases to try: N of "--count N", if that is fewer, else all of them. */
int64_t report_count(int argc, char **argv, int64_t all);

/* Prints the last line; the program's exit status: 1 where a check failed, or none was made. */
int report_end(void);

#endif
