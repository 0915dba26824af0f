#!/usr/bin/env python3
"""Makes or checks the tables of daemon/docs/syscalls.md: which system calls a program makes in each phase.

    .ci/syscalls.py PROGRAMS SCRATCH CHANNELS print        makes the tables, from five runs of each role
    .ci/syscalls.py PROGRAMS SCRATCH CHANNELS compare PAGE fails if PAGE and the calls of a role differ, in either direction
    .ci/syscalls.py PROGRAMS SCRATCH CHANNELS filter COUNT runs each role under its filter; readers that spin or yield receive COUNT messages

PROGRAMS has `shmcast`, `shmcastd` and `examples/phases`. SCRATCH gets traces, sockets and journals, CHANNELS gets channels.
A role runs under strace. It says on stderr where its phases begin, so the trace has the marks. Calls that a thread makes between two
marks belong to the phase, whoever made them; a thread that the library started has rows of its own. The phases of the daemon begin when
this program does something to it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

PHASES = ["start", "attach", "steady", "end"]
DAEMON_PHASES = ["start", "attach", "steady", "reload", "stop"]
ENDLESS = 10**9
# So many messages that a ring of 1 MiB has only the last ones, and that a reader reads their journal in several pieces.
LAPPED = 120000


class Role(NamedTuple):
    """A program whose calls are listed. The words are those of `examples/phases`, without channel and number of messages.

    A name ending in "a journal" has J, the directory of a journal, among its words. A partner runs at the same time, and is not traced.
    """

    title: str
    words: str
    partner: str = ""


ROLES = [
    Role("publisher, files", "publisher files spin"),
    Role("publisher, files, the default directory", "publisher default spin"),
    Role("publisher, files, prepared", "publisher files spin prepared"),
    Role("publisher, files, a gate", "publisher files spin small gate=slow", "reader files spin gate=slow"),
    Role("publisher, files, a journal", "publisher files spin journal=J"),
    Role("publisher, daemon", "publisher daemon spin"),
    Role("reader, files, `Spin`", "reader files spin", "publisher files spin"),
    Role("reader, files, `Yield`", "reader files yield", "publisher files spin"),
    Role("reader, files, `Sleep`", "reader files sleep", "publisher files spin"),
    Role("reader, files, the default directory", "reader default spin", "publisher default spin"),
    Role("reader, files, a gate", "reader files spin gate=slow", "publisher files spin small gate=slow"),
    Role("reader, files, a journal", "reader files spin journal=J", "publisher files spin small"),
    Role("reader, daemon, `Spin`", "reader daemon spin", "publisher daemon spin"),
    Role("reader, daemon, `Yield`", "reader daemon yield", "publisher daemon spin"),
    Role("reader, daemon, `Park`", "reader daemon park", "publisher daemon spin"),
    Role("reader, daemon, `recv_async`", "reader daemon async", "publisher daemon spin"),
    Role("reader, daemon, a journal", "reader daemon spin past", "publisher daemon spin"),
]
DAEMONS = ["daemon", "daemon, a journal"]


class Chance(NamedTuple):
    """Calls that the page always lists, because chance decides whether a run makes them."""

    calls: str
    title: str  # a pattern for titles of rows
    phases: str  # "any" is the phase of threads
    reason: str


THREAD = "clone3 exit gettid prctl rseq rt_sigprocmask sched_getaffinity set_robust_list sigaltstack"
CHANCES = [
    Chance("brk mmap munmap", ".*", "start attach end any", "when the allocator asks for memory depends on what was allocated before"),
    Chance("clock_nanosleep", "(publisher|reader).*", "attach", "the clock's rate is measured over a fixed time, and what is left of it is slept"),
    Chance("futex", "(publisher|reader), daemon.*", "attach end any", "the keeper and the program's thread wait for each other only if both need the lock at once"),
    Chance("epoll_ctl recvfrom sendto write", "reader, daemon, `recv_async`", "attach steady", "a reader does not wait if a message comes meanwhile"),
    Chance("ppoll recvfrom sendto", "reader, daemon, `Park`", "attach steady", "as above"),
    Chance("exit", "(publisher|reader).*: thread .*", "any", "the process may end before its threads do"),
    Chance("close fcntl", "(publisher|reader), daemon.*", "end any", "the last of the two that uses a socket closes it"),
    Chance("sched_yield", "publisher, files, a gate", "steady", "a publisher whose first look at the gate took 2 ms sleeps at once"),
    Chance("newfstatat", "reader, files.*", "attach steady", "a reader looks for the channel's name only if a poll finds nothing"),
    Chance("close fadvise64 fcntl fstat openat pread64 statx", "reader, .*, a journal", "attach steady", "the pace decides what is read at once, and which messages are read from the ring"),
    Chance("recvmsg sendmsg", "reader, daemon, a journal", "attach steady", "it decides too how often the daemon is asked for files"),
    Chance("brk madvise mmap mprotect munmap", "daemon.*", " ".join(DAEMON_PHASES), "the allocator, as above, and it returns memory"),
    Chance("clock_nanosleep futex sched_yield", "daemon.*", " ".join(DAEMON_PHASES), "threads of the daemon wait for each other"),
    Chance(THREAD, "daemon.*", " ".join(DAEMON_PHASES), "threads of the pool start when there is work, and end when there is none"),
    Chance("restart_syscall", "daemon.*", " ".join(DAEMON_PHASES), "a thread was stopped during a pause, as by strace"),
]
# A call that another thread interrupted in the trace has a second line, which does not match.
LINE = re.compile(r"^(\d+) +(?:(\d+\.\d+) )?(\w+)\((.*)")


class Place:
    """The programs, and where they put things."""

    def __init__(self, programs, scratch, channels):
        self.programs, self.scratch = programs, scratch
        self.files, self.shared, self.journal = os.path.join(channels, "files"), os.path.join(channels, "shared"), os.path.join(scratch, "journal")
        self.others = []
        # In a name space of mounts, the programs find a default directory that root has made.
        unshare = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--mount"]
        self.inside = [*unshare, "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', self.shared]
        self.clean()
        self.has_default = subprocess.run([*self.inside, "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0
        if not self.has_default:
            print("SKIPPED roles with the default directory: this machine lets nobody make a name space of mounts")

    def clean(self):
        for folder in (self.files, self.shared, self.journal):
            shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(self.shared, "shmcast"))
        os.chmod(os.path.join(self.shared, "shmcast"), 0o1777)

    def roles(self):
        return [role for role in ROLES if self.has_default or " default " not in role.words]

    def command(self, words, channel, messages, before=()):
        """The command with these words of a role, under the program `before`."""
        role, host, wait, *options = words.replace("=J", f"={self.journal}").split()
        place = {"files": self.files, "default": "default", "daemon": "-"}[host]
        command = [*before, f"{self.programs}/examples/phases", role, channel, str(messages), place, wait, *options]
        return [*self.inside, *command] if host == "default" else command

    def run(self, words, channel, messages, before=(), environment=()):
        command = self.command(words, channel, messages, before)
        environment = {**os.environ, **dict(environment)}
        return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=3600, env=environment, check=False)

    def start(self, command, **more):
        self.others.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, **more))
        return self.others[-1]

    def end_others(self):
        for other in self.others:
            other.send_signal(signal.SIGKILL)
            other.wait()
        self.others = []

    def make_past(self, role, channel):
        """Makes messages that only the journal has, and leaves a recorder running."""
        writer = "publisher daemon spin dies" if " daemon " in role.words else "publisher files spin small dies"
        if " files " in role.words:
            must(self.run(writer, channel, 0))
            self.start([f"{self.programs}/shmcast", "record", channel, "--dir", self.files, "--to", self.journal])
            wait_for("a journal", lambda: os.path.isdir(self.journal) and os.listdir(self.journal))
        must(self.run(writer, channel, LAPPED))


def must(done):
    if done.returncode:
        sys.exit(f"{' '.join(done.args)}: exit code {done.returncode}: {done.stderr}")


def wait_for(what, is_there):
    until = time.monotonic() + 60
    while not is_there():
        if time.monotonic() > until:
            sys.exit(f"waited in vain for {what}")
        time.sleep(0.05)


def calls_of(trace):
    """The calls in a trace: thread, time, name, arguments."""
    with open(trace, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if found := LINE.match(line):
                yield found.groups()


def parse(trace):
    """The calls of each thread in each phase: {thread's name: {phase: {call}}}."""
    calls, names, phase, main = {}, {}, "start", None
    for thread, _, call, rest in calls_of(trace):
        main = main or thread
        mark = re.match(r'2, "phase (\w+)', rest) if call == "write" else None
        if mark:
            phase = mark[1]
            continue
        named = re.match(r'PR_SET_NAME, "([^"]+)"', rest) if call == "prctl" else None
        if named and thread != main:
            names[thread] = named[1]
        # Which thread sees the end of the process is chance.
        if thread == main or call != "exit_group":
            calls.setdefault(thread, {}).setdefault(phase, set()).add(call)
    result = {}
    for thread, phases in calls.items():
        name = "" if thread == main else names.get(thread, "a thread without a name")
        for phase, found in phases.items():
            result.setdefault(name, {}).setdefault(phase, set()).update(found)
    return result


def messages_of(role):
    if "gate=" in role.words:
        # So many that the ring is full of what the gate's reader has not got.
        return 20000 if role.words.startswith("publisher") else 300
    if role.words.startswith("reader") and " daemon " not in role.words:
        # So many that the reader looks for the channel's name once more, which it does each second.
        return 70000
    return 3000


def play(place, role, messages, before=(), environment=()):
    """Runs a role with its partner. Its channel is new, except for one of a daemon."""
    has_journal = role.title.endswith("a journal")
    channel = "kept" if has_journal and " daemon " in role.words else "ticks"
    try:
        if has_journal and role.partner:
            place.make_past(role, channel)
        if role.partner:
            place.start(place.command(role.partner, channel, ENDLESS))
        return place.run(role.words, channel, messages, before, environment)
    finally:
        place.end_others()


def plays(role):
    """What happens to files between the runs of a role that are one row."""
    if role.title == "publisher, files, a journal":
        # It begins the journal, continues behind it in a new channel, and continues in the channel.
        return ["", "files", "nothing"]
    return [""]


def trace_role(place, role, rows):
    trace = os.path.join(place.scratch, "trace")
    for removed in plays(role):
        if removed == "files":
            shutil.rmtree(place.files)
        elif not removed:
            place.clean()
        must(play(place, role, messages_of(role), ["strace", "-f", "-qq", "-o", trace]))
        for thread, phases in parse(trace).items():
            row = rows.setdefault(f"{role.title}: thread `{thread}`" if thread else role.title, {})
            for phase, calls in phases.items():
                row.setdefault("any" if thread else phase, set()).update(calls)
    # A reader waits for its first message as for the others.
    if role.partner and role.words.startswith("reader"):
        rows[role.title]["attach"] |= rows[role.title].get("steady", set())


def trace_daemon(place, title, rows):
    """Runs a daemon through its life. `daemon` has a channel without a journal."""
    has_journal = title.endswith("a journal")
    trace, channel = os.path.join(place.scratch, "trace"), "kept" if has_journal else "ticks"
    home = os.path.join(place.scratch, "home")
    shutil.rmtree(home, ignore_errors=True)
    os.makedirs(home)
    place.clean()
    config = os.path.join(home, "shmcast.toml")
    journal = f'journal = {{ dir = "{home}/journal" }}\n' if has_journal else ""
    with open(config, "w", encoding="utf-8") as file:
        file.write(f'[[channel]]\nname = "{channel}"\ncapacity = "1MiB"\nhugepages = false\n{journal}')
    socket = os.path.join(home, "control.sock")
    environment = {**os.environ, "XDG_RUNTIME_DIR": home, "SHMCAST_SOCKET": socket, "RUST_LOG": "warn"}
    marks = [("start", 0.0)]
    command = ["strace", "-f", "-ttt", "-qq", "-o", trace, f"{place.programs}/shmcastd", "--config", config]
    daemon = place.start(command, env=environment)
    try:
        wait_for("the daemon", lambda: os.path.exists(socket))
        marks.append(("attach", time.time()))
        here = [("SHMCAST_SOCKET", socket)]
        must(place.run("publisher daemon spin dies", channel, LAPPED if has_journal else 0, environment=here))
        place.start(place.command("publisher daemon spin", channel, ENDLESS), env=environment)
        for reader in ["reader daemon spin past"] if has_journal else ["reader daemon park", "reader daemon async"]:
            must(place.run(reader, channel, 3000, environment=here))
        place.start(place.command("reader daemon spin", channel, ENDLESS), env=environment)
        time.sleep(1)
        marks.append(("steady", time.time()))
        time.sleep(3)
        first = next(calls_of(trace))[0]
        marks.append(("reload", time.time()))
        os.kill(int(first), signal.SIGHUP)
        time.sleep(1)
        marks.append(("stop", time.time()))
        os.kill(int(first), signal.SIGTERM)
        daemon.wait(60)
    finally:
        place.end_others()
    row = rows.setdefault(title, {})
    for _, at, call, _ in calls_of(trace):
        phase = [name for name, begin in marks if begin <= float(at)][-1]
        row.setdefault(phase, set()).add(call)


def phases_of(title):
    return ["any"] if ": thread" in title else DAEMON_PHASES if title in DAEMONS else PHASES


def add_chances(rows):
    for title, row in rows.items():
        for calls, pattern, phases, _ in CHANCES:
            for phase in set(phases.split()) & set(phases_of(title)):
                if re.fullmatch(pattern, title):
                    row.setdefault(phase, set()).update(calls.split())


def trace_all(place, rows, titles=None):
    """Adds the calls of one run of each program to the rows. `titles` names those of interest."""
    for role in place.roles():
        if titles is None or any(title.split(": thread")[0] == role.title for title in titles):
            trace_role(place, role, rows)
    for title in DAEMONS:
        if titles is None or title in titles:
            trace_daemon(place, title, rows)
    add_chances(rows)


def cells(calls):
    return " ".join(sorted(calls)) or "none"


def table(head, phases, rows):
    yield f"| {head} | " + " | ".join(phases) + " |"
    yield "|---" * (len(phases) + 1) + "|"
    for title, row in rows.items():
        yield f"| {title} | " + " | ".join(cells(row.get(phase, ())) for phase in phases_of(title)) + " |"
    yield ""


def print_tables(place):
    rows = {}
    for _ in range(5):
        trace_all(place, rows)
    threads = {title: row for title, row in rows.items() if ": thread" in title}
    daemons = {title: row for title, row in rows.items() if title in DAEMONS}
    programs = {title: row for title, row in rows.items() if title not in threads and title not in daemons}
    for line in [
        *table("program", PHASES, programs),
        *table("thread of the library", ["at any time"], threads),
        *table("the daemon's process", DAEMON_PHASES, daemons),
    ]:
        print(line)


def read(page):
    """The rows that a page has."""
    result = {}
    for line in page.splitlines():
        title, *words = [word.strip() for word in line.strip("|").split("|")]
        is_row = line.startswith(("| publisher, ", "| reader, ", "| daemon"))
        if is_row and len(words) == len(phases_of(title)):
            result[title] = {phase: set(cell.split()) - {"none"} for phase, cell in zip(phases_of(title), words)}
    return result


def differences(known, found):
    """What the page lacks, and what the page has and no program does: two lists of (title, text)."""
    less = [(title, "the page has no such row") for title in found if title not in known]
    more = [(title, "the row has no program") for title in known if title not in found]
    for title in known.keys() & found.keys():
        for phase in phases_of(title):
            listed, made = known[title][phase], found[title].get(phase, set())
            # Threads of a daemon do one thing in this phase or in the next. Its calls are compared over its whole life.
            life = title in DAEMONS
            if lacking := made - (set().union(*known[title].values()) if life else listed):
                less.append((title, f"{phase}: the page lacks {cells(lacking)}"))
            if surplus := listed - (set().union(*found[title].values()) if life else made):
                more.append((title, f"{phase}: no program makes {cells(surplus)}"))
    return less, more


def compare(place, page):
    with open(page, encoding="utf-8") as file:
        known = read(file.read())
    if not place.has_default:
        known = {title: row for title, row in known.items() if "the default directory" not in title}
    found = {}
    trace_all(place, found)
    less, more = differences(known, found)
    # A busy machine may keep a program from a call. A call that none of five runs makes is not made.
    for _ in range(4):
        if not less and more:
            trace_all(place, found, {title for title, _ in more})
            less, more = differences(known, found)
    for title, text in less + more:
        print(f"{title}: {text}")
    if less or more:
        sys.exit(f"{len(less) + len(more)} differences from {page}; `.ci/syscalls.py PROGRAMS SCRATCH CHANNELS print` makes its tables")
    print(f"{len(found)} rows as in {page}")


def filter_of(place, kind, instead=None):
    """Writes the filter of publishers or readers. `instead` is a call that is left out."""
    done = subprocess.run([f"{place.programs}/shmcast", "seccomp", "--json", kind], stdout=subprocess.PIPE, text=True, check=True)
    text = json.loads(done.stdout)
    if instead:
        text["main"]["filter"] = [rule for rule in text["main"]["filter"] if rule["syscall"] != instead]
    path = os.path.join(place.scratch, f"{kind}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(text, file)
    return [("SHMCAST_FILTER", path)]


def under_filters(place, count):
    """Under the filter of its role each program ends as without it. A filter that lacks one of the calls ends the program."""
    for role in place.roles():
        kind = role.words.split()[0]
        filtered = filter_of(place, kind)
        is_many = kind == "reader" and role.title.endswith(("`Spin`", "`Yield`"))
        messages = count if is_many else min(count, 100000) if kind == "reader" and "gate=" not in role.words else messages_of(role)
        for removed in plays(role):
            if removed == "files":
                shutil.rmtree(place.files)
            elif not removed:
                place.clean()
            done = play(place, role, messages, environment=filtered)
            if done.returncode:
                sys.exit(f"{role.title} failed under its filter: exit code {done.returncode}: {done.stderr}")
        print(f"{role.title}: {messages} messages under its filter")
    place.clean()
    for kind, role in (("publisher", ROLES[0]), ("reader", next(role for role in ROLES if role.words.startswith("reader")))):
        aborts = role._replace(words=f"{role.words} aborts")
        if (code := play(place, aborts, 1000, environment=filter_of(place, kind)).returncode) != -signal.SIGABRT:
            sys.exit(f"a {kind} that aborts ended with {code} under its filter, not with SIGABRT")
        if (code := play(place, role, 1000, environment=filter_of(place, kind, "close")).returncode) != -signal.SIGSYS:
            sys.exit(f"a {kind} ended with {code} under a filter without `close`, which should kill it")
    print("programs that abort are seen to abort, and a filter without `close` kills")


def main():
    place, todo = Place(*sys.argv[1:4]), sys.argv[4]
    if todo == "print":
        print_tables(place)
    elif todo == "compare":
        compare(place, sys.argv[5])
    else:
        under_filters(place, int(sys.argv[5]))


main()
