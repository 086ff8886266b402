/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory in front of a wall: pages behind its last byte that nobody may touch, not even to read. */
#ifndef TESTS_WALL_H
#define TESTS_WALL_H

#include <stddef.h>

/* `bytes` bytes of zeros, the last of them right before the wall. Never null: without memory the
 * program ends. */
void *wall_open(size_t bytes);
void wall_close(void *memory, size_t bytes);

/* What to tell, in one line, where somebody runs into a wall, which ends the program. Kept. */
void wall_line(const char *line);

#endif
