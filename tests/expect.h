/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_EXPECT_H
#define TESTS_EXPECT_H

#include "report.h"

/* One check: counted, and told in the manner of printf where `ok` does not hold. */
#define EXPECT(ok, ...) ((ok) ? report_pass() : report_fail(__VA_ARGS__))

#endif
