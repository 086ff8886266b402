# SPDX-License-Identifier: BSD-3-Clause
# Counting for suites that are shell scripts; sourced. A suite calls pass, fail and skip, and ends
# with tally_end, which prints "NAME: P passed, F failed, S skipped".
passed=0 failed=0 skipped=0

pass() { passed=$((passed + 1)); }

fail() { # fail WHAT: counts and tells it
    failed=$((failed + 1))
    echo "FAIL $*"
}

skip() { # skip WHY
    skipped=$((skipped + 1))
    echo "SKIP $*"
}

try() { # try WHAT COMMAND...: the check is that the command succeeds; its output is shown if not
    local what=$1 output
    shift
    if output=$("$@" 2>&1); then
        pass
    else
        fail "$what: $*"
        printf '%s\n' "$output" | tail -n 20
    fi
}

tally_end() { # tally_end NAME
    echo "$1: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ] && [ $((passed + skipped)) -gt 0 ]
}
