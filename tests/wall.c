/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "wall.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LINE = 1200, THICK = 4 }; /* pages: what steps over rows goes further than one */

static char now_line[LINE];

static size_t page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t room_of(size_t bytes) { return (bytes + page() - 1) / page() * page(); }

static void hit(int signal_number)
{
    static const char before[] = "FAIL ", behind[] = ": memory was touched that is not its own\n";
    ssize_t n = write(STDOUT_FILENO, before, sizeof before - 1);

    (void)signal_number;
    n += write(STDOUT_FILENO, now_line, strlen(now_line));
    n += write(STDOUT_FILENO, behind, sizeof behind - 1);
    _exit(n > 0 ? 1 : 2);
}

void *wall_open(size_t bytes)
{
    static bool watched;
    const size_t room = room_of(bytes), wall = THICK * page();
    char *const at = mmap(NULL, room + wall, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                          -1, 0);

    if (at == MAP_FAILED || mprotect(at + room, wall, PROT_NONE) != 0) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(1);
    }
    if (!watched) {
        signal(SIGSEGV, hit);
        signal(SIGBUS, hit);
        watched = true;
    }
    return at + room - bytes;
}

void wall_close(void *memory, size_t bytes)
{
    char *const end = (char *)memory + bytes;

    munmap(end - room_of(bytes), room_of(bytes) + THICK * page());
}

void wall_line(const char *line) { snprintf(now_line, sizeof now_line, "%s", line); }
