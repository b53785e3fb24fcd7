# SPDX-License-Identifier: Apache-2.0
"""Whatever parses bytes of others has a fuzz target, and every target has seeds that are kept."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "tests/fuzz"

# A parser, and the target that calls it.
PARSERS = {
    "address": "transport::PeerAddress::decode",
    "admit": "safety::admit",
    "arrivals": "there.take",
    "bundle": "infer::make_bundle",
    "byte_stream": "subject.read",
    "codecs": "unpack(",
    "control_reader": "ControlReader",
    "division": "infer::program_of",
    "graph": "infer::graph_from_json",
    "group_control": "decode_inquiry",
    "handshake": "subject.receive",
    "host_port": "transport::parse_host_port",
    "messages": "collectives::PointToPoint",
    "plan_files": "plan::published_profile",
    "redis_replies": "redis::ReplyReader",
    "redis_url": "redis::parse_url",
    "rendezvous": "collectives::decode_table",
    "roll_call": "decode_roll_call",
    "saved_json": "infer::profile_from_json",
    "shm_messages": "MessageParser",
    "shm_ring": "RingReader",
    "tcp_frames": "transport::tcp::Parser",
    "tls_session": "subject.give",
    "ucx_agreement": "transport::ucx::Agreement",
    "ucx_ring": "ucx::ReceiveRing",
    "weight_file": "infer::WeightFile",
    "wire_frames": "FrameParser",
    "wire_messages": "decode(",
}


def targets() -> dict[str, Path]:
    return {path.name.removesuffix("_fuzz.cpp"): path for path in FUZZ.glob("*_fuzz.cpp")}


def test_every_parser_has_a_target_that_calls_it() -> None:
    assert set(targets()) == set(PARSERS)
    for name, path in targets().items():
        text = path.read_text()
        included = [line.partition("tests/fuzz/")[2].rstrip('"') for line in text.splitlines() if "tests/fuzz/" in line]
        sources = [text, *((FUZZ / header).read_text() for header in included)]
        assert any(PARSERS[name] in source for source in sources), name


def test_every_target_has_seeds_that_are_kept() -> None:
    seeds = {folder.name: list(folder.iterdir()) for folder in (FUZZ / "seeds").iterdir()}
    assert set(seeds) == set(targets())
    assert {name: len(files) for name, files in seeds.items() if len(files) < 2} == {}
