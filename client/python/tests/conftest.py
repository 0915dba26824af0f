"""The common parts of the tests: a directory for channels, programs in separate processes, and a real daemon."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shmcast

# The time limit of each wait in seconds. It is long, because the machine can be busy.
PATIENCE = 60.0

CHANNEL = """
[[channel]]
name = "{name}"
capacity = "1MiB"
mlock = false
hugepages = false
publishers = {publishers}
subscribers = ["*"]
"""


@pytest.fixture
def room() -> Iterator[str]:
    """A directory for channels, in shared memory if possible."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="shmcast-test-", dir=parent) as path:
        yield path


def wait_until(what: str, is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, f"waited {PATIENCE} s for {what}"
        time.sleep(0.01)


class Program:
    """A separate process that runs lines of Python, with `args` as `sys.argv[1:]`."""

    def __init__(self, code: str, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-c", textwrap.dedent(code), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A program in the background of a script ignores Ctrl-C. Without this line, its child processes would also ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def line(self) -> str:
        """Returns the next line that the program prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended: {self.process.communicate()[1]}"
        return line.rstrip("\n")

    def end(self) -> str:
        """Waits for the end of the program, which must succeed. Returns the rest of its output."""
        assert self.process.stdout is not None and self.process.stderr is not None
        output = self.process.stdout.read()  # communicate() would leave out bytes that were read ahead with a line
        errors = self.process.stderr.read()
        self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, errors
        return output

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Daemon:
    """A process of `shmcastd`."""

    def __init__(self, program: Path, place: Path) -> None:
        self.program, self.place = program, place
        self.socket = str(place / "control.sock")
        channels = [("ticks", '["*"]'), ("shut", '["uid:12345"]')]
        config = "".join(CHANNEL.format(name=name, publishers=who) for name, who in channels)
        (place / "shmcast.toml").write_text(config)
        self.start()

    def start(self) -> None:
        command = [str(self.program), "--config", str(self.place / "shmcast.toml"), "--socket", self.socket]
        with open(self.place / "log", "a") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until("the daemon", self.answers)

    def answers(self) -> bool:
        try:
            shmcast.Subscriber("ticks", socket=self.socket, hidden=True).close()
        except shmcast.NoDaemonError:
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        self.process.wait(PATIENCE)


@pytest.fixture
def daemon(room: str) -> Iterator[Daemon]:
    program = Path(os.environ.get("SHMCAST_BIN", Path(__file__).parents[3] / "target/debug")) / "shmcastd"
    if not program.exists():
        pytest.skip(f"{program} is not built: cargo build -p shmcast-daemon, or set SHMCAST_BIN")
    os.chmod(room, 0o755)
    daemon = Daemon(program, Path(room))
    yield daemon
    daemon.stop()
