#!/usr/bin/env python3
"""Makes or checks the tables of daemon/docs/syscalls.md: which system calls a program makes in each phase.

    .ci/syscalls.py PROGRAMS FOLDER print      makes the tables, from five runs of each role
    .ci/syscalls.py PROGRAMS FOLDER PAGE       fails if a role makes a call that PAGE does not have for this phase

PROGRAMS has `examples/phases`. A daemon with the channel `ticks` answers at $SHMCAST_SOCKET. FOLDER gets traces and channels.
Each role runs under strace. A role says on stderr where its phases begin, so the trace has the marks. Calls that a thread makes between two
marks belong to the phase, whoever made them; a thread that the library started has rows of its own.
"""

import os
import re
import shutil
import signal
import subprocess
import sys

MESSAGES = 3000
PHASES = ["start", "attach", "steady", "end"]
# Of a publisher with a gate: so many that the ring is full of what the gate's reader has not got.
GATED_MESSAGES = 30000
GATE = {"SHMCAST_GATE": "slow"}
# Roles: name, arguments of `phases`, and whether another program publishes for it.
ROLES = [
    ("publisher, files, a gate", ["publisher", "files", "spin"], False),
    ("reader, files, a gate", ["reader", "files", "spin"], True),
    ("publisher, files", ["publisher", "files", "spin"], False),
    ("reader, files, `Spin`", ["reader", "files", "spin"], True),
    ("reader, files, `Yield`", ["reader", "files", "yield"], True),
    ("reader, files, `Sleep`", ["reader", "files", "sleep"], True),
    ("publisher, daemon", ["publisher", "daemon", "spin"], False),
    ("reader, daemon, `Spin`", ["reader", "daemon", "spin"], True),
    ("reader, daemon, `Yield`", ["reader", "daemon", "yield"], True),
    ("reader, daemon, `Park`", ["reader", "daemon", "park"], True),
    ("reader, daemon, `recv_async`", ["reader", "daemon", "async"], True),
]
ALLOCATOR = ["brk", "mmap", "munmap"]
# A call that another thread interrupted in the trace has a second line, which does not match.
LINE = re.compile(r"^(\d+) +(\w+)\((.*)")


def command(programs, role, host, wait, messages, folder):
    place = folder if host == "files" else "-"
    return [f"{programs}/examples/phases", role, "ticks", str(messages), place, wait]


def parse(trace):
    """The calls of each thread in each phase: {thread's name: {phase: {call}}}."""
    calls, names, phase, main = {}, {}, "start", None
    with open(trace, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = LINE.match(line)
            if not found:
                continue
            thread, call, rest = found.groups()
            main = main or thread
            mark = re.match(r'2, "phase (\w+)', rest) if call == "write" else None
            if mark:
                phase = mark[1]
                continue
            named = re.match(r'PR_SET_NAME, "([^"]+)"', rest) if call == "prctl" else None
            if named and thread != main:
                names[thread] = named[1]
            calls.setdefault(thread, {}).setdefault(phase, set()).add(call)
    # When the allocator asks for memory depends on what was allocated before, and which thread sees the end of the process on chance.
    for phases in calls.values():
        for phase in set(phases) - {"steady"}:
            phases[phase].update(ALLOCATOR)
        # The clock's rate is measured over a fixed time. What of it is left when the rate is needed is slept.
        if "attach" in phases and phases is calls[main]:
            phases["attach"].add("clock_nanosleep")
    for thread in set(calls) - {main}:
        for found in calls[thread].values():
            found.discard("exit_group")
    result = {}
    for thread, phases in calls.items():
        name = "" if thread == main else names.get(thread, "a thread without a name")
        for phase, found in phases.items():
            result.setdefault(name, {}).setdefault(phase, set()).update(found)
    return result


def play(programs, arguments, needs_publisher, folder, trace, gated):
    role, host, wait = arguments
    environment = {**os.environ, **(GATE if gated else {})}
    messages = GATED_MESSAGES if gated and not needs_publisher else 300 if gated else MESSAGES
    channels = os.path.join(folder, "channels")
    shutil.rmtree(channels, ignore_errors=True)
    other = None
    if needs_publisher or gated:
        partner = command(programs, "publisher" if needs_publisher else "reader", host, "spin", 10**8, channels)
        other = subprocess.Popen(partner, stderr=subprocess.DEVNULL, env=environment)
    traced = ["strace", "-f", "-qq", "-o", trace, *command(programs, role, host, wait, messages, channels)]
    try:
        done = subprocess.run(traced, stderr=subprocess.PIPE, text=True, timeout=300, env=environment)
        if done.returncode:
            sys.exit(f"{' '.join(traced)}: exit code {done.returncode}: {done.stderr}")
    finally:
        if other:
            other.send_signal(signal.SIGKILL)
            other.wait()
    return parse(trace)


def rows(programs, folder, times):
    """The table's rows: {title: {phase: {call}}}. A thread of the library has one set for all phases, because its pace is its own."""
    result = {}
    for turn in range(times):
        for at, (name, arguments, needs_publisher) in enumerate(ROLES):
            found = play(programs, arguments, needs_publisher, folder, os.path.join(folder, f"trace-{at}-{turn}"), name.endswith("a gate"))
            for thread, phases in found.items():
                row = result.setdefault(f"{name}: thread `{thread}`" if thread else name, {})
                for phase, calls in phases.items():
                    row.setdefault("any" if thread else phase, set()).update(calls)
    return result


def cells(calls):
    return " ".join(sorted(calls)) or "none"


def table(found):
    yield "| program | " + " | ".join(PHASES) + " |"
    yield "|---" * (len(PHASES) + 1) + "|"
    for title, row in found.items():
        if "any" not in row:
            yield f"| {title} | " + " | ".join(cells(row.get(phase, ())) for phase in PHASES) + " |"
    yield ""
    yield "| thread of the library | at any time |"
    yield "|---|---|"
    for title, row in found.items():
        if "any" in row:
            yield f"| {title} | {cells(row['any'])} |"


def read(page):
    """The rows that a page has."""
    result = {}
    for line in page.splitlines():
        words = [word.strip() for word in line.strip("|").split("|")]
        if line.startswith("| ") and len(words) in (2, len(PHASES) + 1) and not words[0].startswith(("program", "thread of")):
            names = PHASES if len(words) > 2 else ["any"]
            result[words[0]] = {name: set(cell.split()) - {"none"} for name, cell in zip(names, words[1:])}
    return result


def main():
    programs, folder, todo = sys.argv[1], sys.argv[2], sys.argv[3]
    if todo == "print":
        print("\n".join(table(rows(programs, folder, 5))))
        return
    with open(todo, encoding="utf-8") as page:
        known = read(page.read())
    found = rows(programs, folder, 1)
    faults = [f"{title}: the page has no such row" for title in found if title not in known]
    faults += [f"{title}: the row has no program" for title, row in known.items() if title not in found and "any" not in row]
    for title, row in found.items():
        for phase, calls in row.items():
            row_known = known.get(title, {})
            # A reader waits for its first message as for the others.
            more = calls - row_known.get(phase, set()) - row_known.get("steady", set())
            if title in known and more:
                faults.append(f"{title}, {phase}: {cells(more)} is not in the page")
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(f"{len(faults)} differences from {todo}; `.ci/syscalls.py PROGRAMS FOLDER print` makes its tables")
    print(f"{len(found)} rows as in {todo}")


main()
