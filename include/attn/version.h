/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef ATTN_VERSION_H
#define ATTN_VERSION_H

/* Release version. The shared library's soname comes from ATTN_API_VERSION
 * alone: it is raised only when a program built before stops working. */
#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0
#define ATTN_VERSION_STRING "0.1.0"

#define ATTN_API_VERSION 0

#endif
