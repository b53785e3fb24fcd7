# SPDX-License-Identifier: Apache-2.0
"""Models, inputs and results on a device: a session computes where the model is, and its answers are where the
model's own would be."""

from pathlib import Path

import pytest

from infer.session_programs import Program

BEGIN = """
import atoll.sim
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    def forward(self, x):
        y = self.layers(x)
        return {"here": y, "there": y.cpu() * 2}
torch.manual_seed(3)
net = Net().eval().to("sim:1")
given = x.to("sim:1")
def check(found, wanted):
    for name in ("here", "there"):
        assert found[name].device == wanted[name].device, (name, found[name].device)
        assert found[name].dtype == wanted[name].dtype
        assert torch.allclose(found[name].cpu(), wanted[name].cpu(), atol=1e-6), name
        assert not found[name].requires_grad
with torch.no_grad():
    wanted = net(given)
"""
CASES = {
    "of a module": """
session = session_of(net, given)
assert session.report()["robot"] == "sim:1"
for same in (given, given.t().contiguous().t(), x, x.to("sim:0")):
    check(session(same), wanted)
check(session.submit(given).result(), wanted)
answer = session(given)["here"]
answer.zero_()
check(session(given), wanted)
""",
    "of an attached module": """
session = atoll.infer.attach(net, (given,), profile_seconds=0.0)
assert session.report()["robot"] == "sim:1"
check(net(given), wanted)
assert session.report()["inferences"] == 1
atoll.infer.detach(net)
""",
    "on another device than its own": """
session = session_of(net, given, device="cpu")
assert session.report()["robot"] == "cpu"
check(session(given), wanted)
""",
    "of a captured module": """
bundle = atoll.infer.capture(net, given)
session = atoll.infer.Session(bundle, profile_seconds=0.0)
assert session.report()["robot"] == "sim:1"
check(session(given), wanted)
""",
    "of a folder": """
folder = atoll.infer.capture(net, given).save(os.environ["TMPDIR"])
with atoll.infer.Session(folder, profile_seconds=0.0) as session:
    assert session.report()["robot"] == "cpu"
    assert session(given)["here"].device.type == "cpu"
with atoll.infer.Session(folder, device="sim:2", profile_seconds=0.0) as session:
    assert session(given)["here"].device == torch.device("sim:2")
    assert torch.allclose(session(given)["here"].cpu(), wanted["here"].cpu(), atol=1e-6)
""",
    "on two devices": """
net.layers[2].to("cpu")
try:
    session_of(net, given)
except atoll.infer.ExportError as error:
    assert "the model is on cpu and sim:1: move it to one device, or choose" in str(error), error
else:
    raise AssertionError("it was taken")
""",
    "with a server": """
from pathlib import Path
from atoll import _C
worker = str(Path(atoll.__file__).parent / "atoll_infer_worker")
server = _C.InferServer({"key_file": key_file, "cache_folder": os.environ["TMPDIR"], "worker_program": worker})
session = session_of(net, given, server=server.address, key_file=key_file, policy="offload", hedge="never")
assert session.wait_until_ready(60)
for same in (given, x):
    check(session(same), wanted)
    assert session.last.origin == "server", session.last
session.close()
""",
    "on an accelerator's stream of the caller's": """
session = session_of(net, given)
side = torch.sim.Stream(device="sim:1")
torch.sim.set_device(1)
with torch.sim.stream(side):
    late = given.clone()
    for _ in range(50):
        late = late + 1
    late = late - 50
    found = session(late)
check(found, wanted)
""",
}


@pytest.mark.parametrize("what", CASES)
def test_session(what: str, tmp_path: Path) -> None:
    with Program(tmp_path, BEGIN + CASES[what] + 'say("done")\n') as program:
        assert program.end() == (0, "")


def test_inputs_stay_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
import atoll.sim
class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)
given = torch.rand(4, 500_000).to("sim:0")
session = session_of(Mean(), given)
def seconds():
    begin = time.monotonic()
    assert session(given).shape == (4,)
    return time.monotonic() - begin
found = min(seconds() for _ in range(3))  # a copy to the host alone takes a second
assert found < 0.9, found
"""
    monkeypatch.setenv("ATOLL_SIM_BANDWIDTH", "8M")
    with Program(tmp_path, source) as program:
        assert program.end() == (0, "")
