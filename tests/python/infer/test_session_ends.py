# SPDX-License-Identifier: Apache-2.0
"""A program with a session ends soon, without an abort, and leaves nothing behind, however it ends."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infer.processes import children
from infer.session_programs import Program
from infer.split_cases import session_of, until_server
from launching import eventually
from serving import Serve
from support import crossed, later

SOON = 10.0  # seconds on a busy machine; without the cause tested here everything would take minutes

INTERRUPTED = {
    "measuring": """
nap = 0.05
session_of(Napping(), x, profile_seconds=600.0)
""",
    "an engine's first answer": """
def engine(x):
    say("napping")
    time.sleep(600)
session_of(nn.ReLU(), x, engine=engine)
""",
    "a call": """
session = session_of(Napping(), x)
nap = 1.0
session(x)
""",
    "a turn": """
session = session_of(Napping(), x)
nap = 1.0
threading.Thread(target=session, args=(x,), daemon=True).start()
while "napping" not in said:
    time.sleep(0.001)
session(x)
""",
    "closing": """
session = session_of(Napping(), x)
nap = 600.0
threading.Thread(target=session, args=(x,), daemon=True).start()
while "napping" not in said:
    time.sleep(0.001)
session.close()
""",
    "a wait": """
session = session_of(nn.ReLU(), x, server="127.0.0.1:1", key_file=key_file)
say("napping")
session.wait_until_ready(600)
""",
}


@pytest.mark.parametrize("what", INTERRUPTED)
def test_ctrl_c_ends_what_takes_long(what: str, tmp_path: Path) -> None:
    source = "".join(f"    {line}\n" for line in INTERRUPTED[what].splitlines())
    ended = 'except KeyboardInterrupt:\n    say("interrupted")\n    os._exit(0)\n'
    with Program(tmp_path, f"try:\n{source}{ended}") as program:
        program.wait_for("napping")
        begin = time.monotonic()
        program.process.send_signal(signal.SIGINT)
        program.wait_for("interrupted")
        assert time.monotonic() - begin < SOON
        assert program.end()[0] == 0


def test_a_session_goes_on_after_an_interrupted_call(tmp_path: Path) -> None:
    source = """
session = session_of(Napping(), x)
nap = 1.0
try:
    session(x)
except KeyboardInterrupt:
    nap = 0.0
assert torch.equal(session(x), x)
say("answered")
"""
    with Program(tmp_path, source) as program:
        program.wait_for("napping")
        program.process.send_signal(signal.SIGINT)
        program.wait_for("answered")
        assert program.end() == (0, "")


def test_a_signal_handler_closes_the_session_of_the_call_that_it_interrupts(tmp_path: Path) -> None:
    source = """
session = session_of(Napping(), x)
nap = 1.0
def close(*_):
    try:
        session(x)
    except ValueError as error:
        assert "inside another call" in str(error), error
        say("refused")
    session.close()
    say("handled")
signal.signal(signal.SIGTERM, close)
try:
    session(x)
except RuntimeError as error:
    assert "closed while" in str(error), error
    say("ended")
"""
    with Program(tmp_path, source) as program:
        program.wait_for("napping")
        begin = time.monotonic()
        program.process.send_signal(signal.SIGTERM)
        for text in ("refused", "handled", "ended"):
            program.wait_for(text)
        assert time.monotonic() - begin < SOON
        assert program.end() == (0, "")


@pytest.mark.parametrize(
    "call", ["session(x)", later("session.report()"), "net(x)", later("session.submit(x).result()")]
)
def test_daemon_threads_do_not_abort_the_end(call: str, tmp_path: Path) -> None:
    source = f"""
net = nn.ReLU().eval()
session = atoll.infer.attach(net, (x,), profile_seconds=0.0)
begun = threading.Event()
def work():
    while True:
        {call}
        begun.set()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
    with Program(tmp_path, source, fresh=True) as program:
        status, errors = program.end()
    assert status == 0, errors
    assert "terminate called" not in errors


def test_the_end_does_not_wait_for_submitted_inferences(tmp_path: Path) -> None:
    source = """
session = session_of(Napping(), x)
nap = 1.0
futures = [session.submit(x) for _ in range(100)]
while "napping" not in said:
    time.sleep(0.001)
"""
    with Program(tmp_path, source, fresh=True) as program:
        program.wait_for("napping")
        begin = time.monotonic()
        status, errors = program.end()
        assert time.monotonic() - begin < SOON
    assert status == 0, errors


def test_joining_threads_at_the_end_does_not_block(tmp_path: Path) -> None:
    source = """
import weakref
running = []
weakref.finalize(nn.ReLU, lambda: [thread.join() for thread in running])  # behind the session's own
session = session_of(nn.ReLU(), x)
begun = threading.Event()
def work():
    try:
        while True:
            session(x)
            begun.set()
    except (ValueError, RuntimeError) as error:  # before a call, or while one runs
        assert "closed" in str(error)
running.append(threading.Thread(target=work, daemon=True))
running[0].start()
begun.wait()
"""
    with Program(tmp_path, source, fresh=True) as program:
        assert program.end() == (0, "")


@pytest.mark.parametrize(
    ("how", "server"),
    crossed(["SIGTERM", "SIGKILL", "os._exit(0)", "pass"], ["", ', server="127.0.0.1:1", key_file=key_file']),
)
def test_nothing_is_left_behind(how: str, server: str, tmp_path: Path) -> None:
    is_signal = how.startswith("SIG")
    end = "time.sleep(600)" if is_signal else how
    source = f"session = session_of(nn.Linear(8, 8), x{server})\nsession(x)\nsay('ready')\n{end}\n"
    with Program(tmp_path, source, fresh=how == "pass") as program:
        program.wait_for("ready")
        assert not [name for name in program.left() if "atoll" in name], "not while it runs either"
        if is_signal:
            program.process.send_signal(signal.Signals[how])
        status, errors = program.end()
        assert status == (-signal.Signals[how] if is_signal else 0), errors
        assert program.left() == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serve]:
    with Serve(tmp_path) as server:
        yield server


def test_workers_end_with_a_server_that_is_killed(server: Serve) -> None:
    with session_of(server.address, server.key_file) as session:
        until_server(session)
        workers = children(server.process.pid)
        assert workers
        server.stop(signal.SIGKILL)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the workers have ended")
