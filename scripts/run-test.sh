#!/usr/bin/env bash
# Runs a program with a time limit. After PAPILIO_TEST_SECONDS (1,500) it prints where each thread is,
# kills the program and fails. CI uses it as cargo's runner, so that a test that hangs fails with a
# diagnosis.
#
# The next test that makes a temporary directory removes the files, mounts and loop devices that the
# killed program left. gdb, if installed, prints the threads' backtraces; the kernel function in
# which each thread waits is always printed.
set -uo pipefail

limit=${PAPILIO_TEST_SECONDS:-1500}
if [ "$#" -eq 0 ]; then
    echo "usage: run-test.sh PROGRAM [ARGUMENT...]" >&2
    exit 2
fi

show_threads() {
    local pid=$1 task
    if command -v gdb >/dev/null; then
        # Functions and lines suffice; printing arguments would take minutes.
        timeout 300 gdb -p "$pid" -batch -nx -ex "set pagination off" -ex "set print frame-arguments none" \
            -ex "set filename-display basename" -ex "thread apply all backtrace 60" </dev/null 2>/dev/null |
            grep -E '^(Thread|#)' | cut -c 1-240
    fi
    for task in "/proc/$pid/task"/*; do
        printf '%s (%s): state %s, waits in %s\n' "${task##*/}" "$(cat "$task/comm" 2>/dev/null)" \
            "$(sed -n 's/^State:\t//p' "$task/status" 2>/dev/null)" "$(cat "$task/wchan" 2>/dev/null)"
    done
}

# The program replaces this process. The watcher is orphaned on purpose, so that the program has no
# unexpected child; it exits when the program is gone.
program=$1
watched=$$
(
    (
        for ((second = 0; second < limit; second++)); do
            sleep 1
            kill -0 "$watched" 2>/dev/null || exit 0
        done
        {
            printf 'run-test: %s is still running after %s s. Its threads:\n' "$program" "$limit"
            show_threads "$watched"
        } >&2
        kill -KILL "$watched" 2>/dev/null
    ) >/dev/null </dev/null &
)
exec "$@"
