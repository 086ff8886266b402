/* SPDX-License-Identifier: BSD-3-Clause */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FAULTS = 40, MOST_REASONS = 16, LINE = 400 };

static struct {
    const char *name;
    long passed, failed, skipped;
    int reasons;
    char reason[MOST_REASONS][LINE];
} report;

void report_begin(const char *name)
{
    memset(&report, 0, sizeof report);
    report.name = name;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
}

void report_pass(void) { report.passed++; }

void report_fail(const char *format, ...)
{
    va_list args;

    if (++report.failed > MOST_FAULTS)
        return;
    printf("FAIL ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    if (report.failed == MOST_FAULTS)
        printf("(further failures are only counted)\n");
}

void report_skip(const char *format, ...)
{
    char line[LINE];
    va_list args;

    report.skipped++;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (int n = 0; n < report.reasons; n++)
        if (strcmp(line, report.reason[n]) == 0)
            return;
    if (report.reasons == MOST_REASONS)
        return;
    strcpy(report.reason[report.reasons++], line);
    printf("SKIP %s\n", line);
}

int64_t report_count(int argc, char **argv, int64_t all)
{
    const bool some = argc == 3 && strcmp(argv[1], "--count") == 0;
    const int64_t given = some ? strtoll(argv[2], NULL, 10) : all;
    return given > 0 && given < all ? given : all;
}

int report_end(void)
{
    const bool bad = report.failed > 0 || report.passed + report.skipped == 0;

    printf("%s: %ld passed, %ld failed, %ld skipped\n", report.name, report.passed, report.failed,
           report.skipped);
    return bad ? 1 : 0;
}
