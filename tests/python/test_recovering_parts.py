# SPDX-License-Identifier: Apache-2.0
"""Parts of a training that recovers: the progress of a step, the state that is restored, the state that is sent to
others."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from atoll.launch.supervisor import Heard
from atoll.loading.exchange import Exchange
from atoll.recovering.elastic_trainer import ElasticTrainer
from atoll.recovering.member import Member, post
from atoll.recovering.notices import END, READY, VOID, Notice, Roster, Seat, answer_key, count_key, notice_key
from atoll.recovering.replica import Buffers
from atoll.recovering.sharing import share, share_tensors
from atoll.recovering.steps import Applied, restart_scalers
from atoll.recovering.world import is_of_group, named_ranks
from support import Ranks, raises
from training import network
from training import share as samples


def test_ranks_that_an_error_names() -> None:
    text = "all_reduce #7 (float32, 40 bytes) on rank 12: rank 3 died; ranks 4, 15 did not come; rank3 franks 8"
    assert named_ranks(text) == {12, 3, 4, 15}
    assert named_ranks("nobody") == set()


def test_what_counts_as_a_lost_group() -> None:
    assert is_of_group(dist.DistNetworkError("rank 1 died"))
    assert is_of_group(dist.DistBackendError("timeout"))
    assert not is_of_group(dist.DistStoreError("the store is gone"))
    assert not is_of_group(ValueError("the program's own"))
    assert not is_of_group(KeyboardInterrupt())


def two_optimizers() -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1) for _ in range(2)]


def test_how_far_optimizers_have_come() -> None:
    optimizers = two_optimizers()
    applied = Applied(optimizers, torch.device("cpu"))
    assert (applied.whole, applied.torn) == (False, False)
    optimizers[0].step()
    assert (applied.whole, applied.torn) == (False, True)
    optimizers[1].step()
    assert (applied.whole, applied.torn) == (True, False)
    applied.begin()
    assert (applied.whole, applied.torn) == (False, False)


def test_an_optimizer_that_was_left_in_the_middle() -> None:
    optimizers = two_optimizers()[:1]
    applied = Applied(optimizers, torch.device("cpu"))

    def fail(*_: Any) -> None:
        raise dist.DistNetworkError("rank 1 died")

    optimizers[0].register_step_pre_hook(fail)
    with pytest.raises(dist.DistNetworkError):
        optimizers[0].step()
    assert (applied.whole, applied.torn) == (False, True)


def test_an_optimizer_that_steps_twice_does_not_stand_for_another() -> None:
    optimizers = two_optimizers()
    applied = Applied(optimizers, torch.device("cpu"))
    optimizers[0].step()
    optimizers[0].step()
    assert (applied.whole, applied.torn) == (False, True)
    optimizers[1].step()
    assert (applied.whole, applied.torn) == (True, False)


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_of_a_repeated_step_are_unscaled(fused: bool) -> None:
    """The first try ends in the optimizer's step, after the scaler has begun it."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    lost = [dist.DistNetworkError("rank 1 died")]

    def fail_once(*_: Any) -> None:
        if lost:
            raise lost.pop()

    optimizer.register_step_pre_hook(fail_once)
    scaler.scale(parameter.sum()).backward()
    with pytest.raises(dist.DistNetworkError):
        scaler.step(optimizer)
    restart_scalers([torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False), scaler], [optimizer])
    optimizer.zero_grad()
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    assert parameter.tolist() == [0.0] * 3
    assert scaler.get_scale() == 64


def test_a_group_that_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    net, store = network(), dist.HashStore()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monkeypatch.setattr(Member, "from_environment", lambda timeout: Member(store, "m", timeout))
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        said = "atoll.ElasticTrainer makes the process group, and replaces it whenever .*: remove init_process_group"
        with pytest.raises(RuntimeError, match=said):
            ElasticTrainer(net, optimizer, lambda model: pytest.fail("no group was to be made"))
    finally:
        dist.destroy_process_group()


def test_the_supervisor_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Member.from_environment(timedelta(seconds=1)) is None
    monkeypatch.setenv("ATOLL_SUPERVISOR", "tcp://nowhere")
    with pytest.raises(ValueError, match="ATOLL_SUPERVISOR is set but ATOLL_MEMBER is not: atoll run sets both"):
        Member.from_environment(timedelta(seconds=1))
    monkeypatch.setenv("ATOLL_MEMBER", "m")
    with pytest.raises(ValueError, match='ATOLL_SUPERVISOR="tcp://nowhere": expected tcp://HOST:PORT'):
        Member.from_environment(timedelta(seconds=1))


def test_running_statistics_are_restored() -> None:
    norm = nn.BatchNorm1d(4)
    norm(torch.randn(8, 4))
    before = {name: value.clone() for name, value in norm.named_buffers()}
    kept = Buffers(norm)
    kept.keep()
    norm(torch.randn(8, 4))
    kept.put_back()
    for name, value in norm.named_buffers():
        assert torch.equal(value, before[name]), name


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))


def test_a_notice_that_never_comes(store: dist.TCPStore) -> None:
    """The rank died after it had taken the number; another rank that was only slow takes a new number."""
    heard = Heard()
    store.add(count_key(), 1)
    heard.skip_void(store, 0.0)
    heard.skip_void(store, 0.9)
    assert not store.check([notice_key(1)])
    heard.skip_void(store, 1.1)
    assert store.get(notice_key(1)) == VOID.encode()
    heard.index = 1
    store.compare_set(notice_key(2), "", VOID)
    notice = Notice("0.0", READY, reason="é")
    post(store, notice)
    assert Notice.parse(store.get(notice_key(3))) == notice
    heard.index = 3
    store.add(count_key(), 1)
    heard.end(store)
    assert [store.get(notice_key(index)) for index in (4, 5)] == [END.encode()] * 2


def test_a_member_gets_the_answer_to_its_newest_notice(store: dist.TCPStore) -> None:
    member = Member(store, "1.0", timedelta(seconds=5))
    for number in (1, 2):
        roster = Roster(number, (Seat("1.0", 0, 1, ""),), False)
        member.ready(number - 1, 7)
        store.set(answer_key("1.0", number), roster.text())
        assert member.roster() == roster
    assert not member.others_wait(2)


def receive(rank: int) -> None:
    exchange = Exchange(dist.distributed_c10d._get_default_group(), torch.device("cpu"))
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01 * (rank + 1), foreach=False)
    for step in range(3 if rank == 1 else 0):
        inputs, targets = samples(step, 0)
        nn.functional.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
    own = {"optimizer": optimizer.state_dict(), "n": (3, [1.5, None, "x"]), "t": torch.arange(6).reshape(2, 3).t()}
    got = share(own if rank == 1 else None, 1, exchange)
    share_tensors([*net.parameters(), *net.buffers()], 1, exchange)
    optimizer.load_state_dict(got["optimizer"])
    assert got["n"] == (3, [1.5, None, "x"])
    assert torch.equal(got["t"], own["t"])
    assert optimizer.param_groups[0]["lr"] == 0.02
    flat = [*net.parameters(), *(value for state in optimizer.state.values() for value in state.values())]
    bits = torch.cat([value.detach().double().reshape(-1) for value in flat])
    assert bits.numel() > 3 * sum(parameter.numel() for parameter in net.parameters())
    everyone = [torch.empty_like(bits) for _ in range(2)]
    dist.all_gather(everyone, bits)
    assert torch.equal(everyone[0], everyone[1])


def test_a_state_travels_bit_for_bit(two_ranks: Ranks) -> None:
    two_ranks.run(receive)


class Own:
    pass


def refuse(rank: int) -> None:
    exchange = Exchange(dist.distributed_c10d._get_default_group(), torch.device("cpu"))
    with raises(ValueError, "rank 0: the state of the training cannot be sent to other ranks", "Own"):
        share({"own": Own()}, 0, exchange)


def test_more_than_values_is_refused_on_all_ranks(two_ranks: Ranks) -> None:
    two_ranks.run(refuse)
