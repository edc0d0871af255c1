#!/usr/bin/env bash
# Runs a program, and does not wait for ever: after PAPILIO_TEST_SECONDS (900) it says where each thread is, ends
# the program and fails. Cargo's runner in CI, so that a test that hangs is a failure that can be understood.
#
# What was made for the program is cleaned up as after a kill. Threads are shown by gdb where there is one, and
# else by what they wait for in the kernel.
set -uo pipefail

limit=${PAPILIO_TEST_SECONDS:-900}
if [ "$#" -eq 0 ]; then
    echo "usage: run-test.sh PROGRAM [ARGUMENT...]" >&2
    exit 2
fi

show_threads() {
    local pid=$1 task
    if command -v gdb >/dev/null; then
        # Names and lines suffice; printing values takes minutes.
        timeout 300 gdb -p "$pid" -batch -nx -ex "set pagination off" -ex "set print frame-arguments none" \
            -ex "set filename-display basename" -ex "thread apply all backtrace 60" </dev/null 2>/dev/null |
            grep -E '^(Thread|#)' | cut -c 1-240
    fi
    for task in "/proc/$pid/task"/*; do
        printf '%s (%s): state %s, waits in %s\n' "${task##*/}" "$(cat "$task/comm" 2>/dev/null)" \
            "$(sed -n 's/^State:\t//p' "$task/status" 2>/dev/null)" "$(cat "$task/wchan" 2>/dev/null)"
    done
}

# The program takes this process over; who watches it is nobody's child, and goes when it is gone.
program=$1
watched=$$
(
    (
        for ((second = 0; second < limit; second++)); do
            sleep 1
            kill -0 "$watched" 2>/dev/null || exit 0
        done
        {
            printf 'run-test: %s still runs after %s s. Its threads:\n' "$program" "$limit"
            show_threads "$watched"
        } >&2
        kill -KILL "$watched" 2>/dev/null
    ) >/dev/null </dev/null &
)
exec "$@"
