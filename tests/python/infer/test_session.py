# SPDX-License-Identifier: Apache-2.0
"""Sessions in Python without a server; sessions with a server have tests of their own."""

import copy
import io
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atoll.infer
from atoll.infer import InputError, Session
from support import run_script

FAST = {"profile_seconds": 0.0}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, image: torch.Tensor, scale: float = 2.0) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.norm(self.conv(image)))
        return {"logits": self.head(hidden.mean((2, 3))) * scale, "hidden": hidden}


@dataclass
class Pair:
    first: torch.Tensor
    second: tuple[torch.Tensor, ...]


class Twice(nn.Module):
    def forward(self, value: torch.Tensor) -> Pair:
        return Pair(value * 2, (value, value > 0))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    return Net().eval()


@pytest.fixture
def image() -> torch.Tensor:
    return torch.randn(1, 3, 17, 13)


@pytest.fixture
def session(net: Net, image: torch.Tensor) -> Iterator[Session]:
    with Session(net, (image,), **FAST) as made:
        yield made


def test_gives_what_the_model_gives(session: Session, net: Net) -> None:
    other = torch.randn(1, 3, 17, 13)
    with torch.no_grad():
        wanted = net(other)
    got = session(other)
    assert list(got) == list(wanted)
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype
        torch.testing.assert_close(got[name], tensor)
    assert session.last is not None
    assert session.last.origin == "local"
    assert not session.last.missed


def test_structures_and_dtypes_come_back() -> None:
    value = torch.randn(3, 4, dtype=torch.float64)
    with Session(Twice().eval(), value, **FAST) as session:
        got = session(value)
    assert isinstance(got, Pair)
    assert got.second[1].dtype == torch.bool
    assert torch.equal(got.first, value * 2)
    assert torch.equal(got.second[0], value)


def test_answers_belong_to_the_caller(session: Session, image: torch.Tensor) -> None:
    first = session(image)["logits"]
    kept = first.clone()
    first.zero_()
    assert torch.equal(session(image)["logits"], kept)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"deadline": 0.0}, "deadline is 0"),
        ({"patience": float("inf")}, "patience is inf"),
        ({"profile_seconds": float("nan")}, "profile_seconds is nan: give seconds from 0 to 1e9"),
        ({"profile_seconds": float("inf")}, "profile_seconds is inf"),
        ({"profile_seconds": -1.0}, "profile_seconds is -1"),
        ({"patiense": 1.0}, 'no setting "patiense": it has policy, .*patience'),
        ({"policy": "fastest"}, 'policy "fastest" is not known'),
        ({"patience": "1"}, "patience is '1': give a number"),
        ({"seed": -1}, "seed is -1: give a whole number of at least 0"),
        ({"chunks": 0}, "chunks is 0: give 1 to 65536"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Session(nn.ReLU().eval(), (torch.ones(2),), **{"profile_seconds": 0.01, **settings})


def test_other_inputs_are_refused(session: Session) -> None:
    with pytest.raises(InputError, match="shape"):
        session(torch.randn(1, 3, 16, 13))
    with pytest.raises(InputError, match="float64"):
        session(torch.randn(1, 3, 17, 13, dtype=torch.float64))


def test_a_bundle_will_do(net: Net, image: torch.Tensor, tmp_path: Path) -> None:
    folder = atoll.infer.capture(net, (image,)).save(tmp_path)
    with Session(folder, **FAST) as session, torch.no_grad():
        torch.testing.assert_close(session(image)["logits"], net(image)["logits"])


def test_submitted_inferences_run_in_order(session: Session, net: Net) -> None:
    images = [torch.randn(1, 3, 17, 13) for _ in range(5)]
    futures = [session.submit(each) for each in images]
    for each, future in zip(images, futures, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(future.result(60)["logits"], net(each)["logits"])
    assert session.report()["inferences"] == 5


def test_the_seconds_of_a_submitted_inference_begin_with_its_submission(session: Session, image: torch.Tensor) -> None:
    session.submit(image).result(60)
    assert session._queue is not None
    gate = threading.Event()
    session._queue.submit(gate.wait)
    begin = time.perf_counter()
    future = session.submit(image)
    while time.perf_counter() - begin < 0.05:
        pass
    gate.set()
    future.result(60)
    assert session.last is not None
    assert session.last.seconds >= 0.05


def test_what_waits_has_a_bound(session: Session, image: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.infer.session._MAX_WAITING", 3)
    session.submit(image).result(60)
    assert session._queue is not None
    is_held, gate = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        gate.wait(60)

    session._queue.submit(hold)
    assert is_held.wait(60)  # so all earlier ones are over
    futures = [session.submit(image) for _ in range(3)]
    with pytest.raises(RuntimeError, match="3 inferences are waiting"):
        session.submit(image)
    assert futures[-1].cancel()
    futures[-1] = session.submit(image)
    gate.set()
    for each in futures:
        each.result(60)


def test_closing_ends_what_runs() -> None:
    net = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(50))).eval()
    session = Session(net, (torch.ones(300, 1000),), **FAST)
    futures = [session.submit(torch.ones(300, 1000)) for _ in range(20)]
    while not futures[0].running() and not futures[0].done():
        pass
    session.close()
    assert all(future.done() for future in futures)
    assert futures[-1].cancelled()
    errors = [future.exception() for future in futures if not future.cancelled()]
    assert "closed" in str(errors[-1]), "the one that ran does not go on to its end"
    with pytest.raises(ValueError, match="closed"):
        session(torch.ones(300, 1000))


def test_a_forked_child_gets_an_error(session: Session, image: torch.Tensor) -> None:
    session.submit(image).result(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            told = 0
            for call in (lambda: session(image), lambda: session.submit(image), session.report):
                try:
                    call()
                except RuntimeError as error:
                    told += "forked" in str(error)
            session.close()
            code = 0 if told == 3 else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    session(image)


def test_reports(session: Session, image: torch.Tensor) -> None:
    for _ in range(3):
        session.run((image,), deadline=1e-9)
    report = session.report()
    assert report["inferences"] == 3
    assert report["missed"] == 3
    assert report["origins"] == {"local": 3, "mixed": 0, "server": 0}
    assert "3 inferences (3 local)" in str(report)
    assert "no server" in str(report)


def test_a_deadline_of_one_call_is_a_number(session: Session, image: torch.Tensor) -> None:
    for deadline in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"deadline is {deadline}: give seconds"):
            session.run((image,), deadline=deadline)
    session.run((image,), deadline=-1.0)
    assert session.last is not None
    assert session.last.missed


def test_how_long_to_wait_is_a_number(session: Session) -> None:
    for seconds in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match=f"seconds is {seconds}.*: give seconds from 0 to 1e9"):
            session.wait_until_ready(seconds)
    assert not session.wait_until_ready(0)


def test_a_closed_session_raises(net: Net, image: torch.Tensor) -> None:
    session = Session(net, (image,), **FAST)
    session.close()
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session(image)


def test_keys(net: Net, image: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="key_file="):
        Session(net.train(), (image,), server="127.0.0.1:1")  # before the model is captured
    net.eval()
    with pytest.raises(ValueError, match="does not exist"):
        Session(net, (image,), server="127.0.0.1:1", key_file=tmp_path / "key")
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        Session(net, (image,), server="127.0.0.1:1", key_file=key)


def test_a_server_that_is_not_there_costs_nothing(net: Net, image: torch.Tensor, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o600)
    with Session(net, (image,), server="127.0.0.1:1", key_file=key, **FAST) as session, torch.no_grad():
        torch.testing.assert_close(session(image)["logits"], net(image)["logits"])
        assert not session.wait_until_ready(0.2)
        assert session.report()["link"]["state"] in ("connecting", "lost")


def test_an_attached_module_outlives_its_session(net: Net, image: torch.Tensor) -> None:
    session = atoll.infer.attach(net, (image,), **FAST)
    session.close()
    with pytest.warns(UserWarning, match="its session was closed") as caught:
        answers = [net(image)["logits"] for _ in range(2)]
    assert len(caught) == 1
    assert answers[0].requires_grad, "by the module itself"
    atoll.infer.detach(net)
    assert torch.equal(answers[1], net(image)["logits"])


def test_attach_splits_the_module_itself(net: Net, image: torch.Tensor) -> None:
    with torch.no_grad():
        wanted = net(image)["logits"]
    names = list(net.state_dict())
    session = atoll.infer.attach(net, (image,), **FAST)
    torch.testing.assert_close(net(image)["logits"], wanted)
    assert session.report()["inferences"] == 1
    assert list(net.state_dict()) == names
    with pytest.raises(ValueError, match="the module is already attached: detach it first"):
        atoll.infer.attach(net, (image,), **FAST)
    atoll.infer.detach(net)
    assert "forward" not in net.__dict__
    torch.testing.assert_close(net(image)["logits"], wanted)
    with pytest.raises(ValueError, match="the module is not attached"):
        atoll.infer.detach(net)


def test_what_does_not_fit_goes_to_the_module(net: Net, image: torch.Tensor) -> None:
    session = atoll.infer.attach(net, (image,), **FAST)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert net(torch.randn(2, 3, 9, 9))["logits"].shape == (2, 5)
        net.train()
        for _ in range(2):
            assert net(image)["logits"].requires_grad
        net.eval()
        with torch.no_grad():
            net.head.bias.add_(1)
        changed = net(image)["logits"]
    assert [str(each.message).count("not split") for each in caught] == [1, 1, 1]
    assert session.report()["inferences"] == 0
    atoll.infer.detach(net)
    torch.testing.assert_close(net(image)["logits"], changed)


def test_one_warning_for_all_values_of_an_argument(net: Net, image: torch.Tensor) -> None:
    session = atoll.infer.attach(net, (image, 2.0), **FAST)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(5):
            net(image, 2.5 + number)
            net(torch.randn(1, 3, 9 + number, 9), 2.0)
    assert ["scale is 2.5, but" in str(each.message) for each in caught] == [True, False]
    assert session.report()["inferences"] == 0
    atoll.infer.detach(net)


def test_changes_that_no_version_counts_are_seen(net: Net, image: torch.Tensor) -> None:
    session = atoll.infer.attach(net, (image,), **FAST)
    net(image)
    assert session.report()["inferences"] == 1
    for parameter in net.parameters():
        parameter.data.mul_(1.5)
    with torch.no_grad(), pytest.warns(UserWarning, match="the model has changed since it was captured"):
        got = net(image)["logits"]
    assert session.report()["inferences"] == 1
    atoll.infer.detach(net)
    with torch.no_grad():
        assert torch.equal(got, net(image)["logits"])


def test_a_changed_tensor_is_seen_when_its_turn_comes(net: Net, image: torch.Tensor) -> None:
    session = atoll.infer.attach(net, (image,), **FAST)
    net.head.bias.data.add_(1)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calls = len([*net.parameters(), *net.buffers()]) + 2
        answers = [net(image)["logits"] for _ in range(calls)]
    assert len(caught) == 1
    assert 0 < session.report()["inferences"] < calls
    atoll.infer.detach(net)
    with torch.no_grad():
        assert torch.equal(answers[-1], net(image)["logits"])
        assert torch.equal(answers[-2], answers[-1]), "it stays so"


ON_A_DEVICE = """
import torch
import atoll.infer
import atoll.sim

net, x = torch.nn.Linear(3, 4).eval(), torch.randn(2, 3)
wanted = net(x)
session = atoll.infer.attach(net.to("sim"), (x.to("sim"),), profile_seconds=0.0)
found = net(x.to("sim"))
assert session.report()["inferences"] == 1
assert found.device.type == "sim"
torch.testing.assert_close(found.cpu(), wanted)
"""


def test_an_attached_module_answers_on_its_device() -> None:
    """Runs in a process of its own, because simulated devices stay for all tests of a process."""
    (done,) = run_script(ON_A_DEVICE, 1)
    assert done.returncode == 0, done.stderr


def test_copies_of_an_attached_module_are_plain(net: Net, image: torch.Tensor) -> None:
    session = atoll.infer.attach(net, (image,), **FAST)
    with torch.no_grad():
        wanted = net(image)["logits"]
        before = session.report()["inferences"]
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)):
            torch.testing.assert_close(copied(image)["logits"], wanted)
    assert session.report()["inferences"] == before
    atoll.infer.detach(net)
