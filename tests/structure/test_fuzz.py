# SPDX-License-Identifier: Apache-2.0
"""Everything that parses bytes of peers has a fuzz target, and every target has seeds in the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "tests/fuzz"
LAYERS = ROOT / "src/atoll"

# Names in headers of functions that read bytes or texts, and other names that count if they take bytes.
TELLING = r"(?:decode|parse|unpack|admit)(?:_\w+)?|(?:\w+_)?from_json|read_(?:operators|link|request)|published_profile"
TAKING = r"(?:read|receive|take|feed|give|accept|consume|pull)(?:_\w+)?"
GIVEN = r"span<const std::byte>|const (?:transport::)?Frame&"
TYPE = r"^[ \t]*(?!return\b|throw\b|if\b|else\b)(?:[\w:<>,*&\[\]]+[ \t]+)+[*&]?"
FUNCTION = re.compile(rf"{TYPE}(?:({TELLING})|({TAKING}))\(((?:[^;{{}}]|{{}})*?)\)", re.MULTILINE)
CLASS = re.compile(r"^[ \t]*(?:class|struct)[ \t]+(\w*(?:Parser|Reader|Decoder)\w*)\b(?![ \t]*;)", re.M)
COMMENT = re.compile(r"//.*")

# Each target, and the function through which it has bytes parsed.
PARSERS = {
    "address": "transport::PeerAddress::decode",
    "admit": "safety::admit",
    "arrivals": "there.take",
    "bundle": "infer::make_bundle",
    "byte_stream": "subject.read",
    "codecs": "unpack(",
    "collective_frames": "executor_.run",
    "control_reader": "ControlReader",
    "division": "infer::program_of",
    "graph": "infer::graph_from_json",
    "group_control": "decode_inquiry",
    "handshake": "subject.receive",
    "host_port": "transport::parse_host_port",
    "messages": "collectives::PointToPoint",
    "plan_files": "plan::published_profile",
    "plan_requests": "plan::Cost::from_json",
    "redis_answers": "redis::list_jobs",
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

# Declarations in headers, and the target that reaches them.
REACHED = {
    "collectives/control_message.h: decode_clock": "group_control",
    "collectives/control_message.h: decode_inquiry": "group_control",
    "collectives/control_message.h: decode_refusal": "group_control",
    "collectives/control_message.h: decode_step": "group_control",
    "collectives/control_message.h: decode_withdrawal": "group_control",
    "collectives/control_message.h: decode_report": "group_control",
    "collectives/messages/point_to_point.h: accept_payload": "messages",
    "collectives/messages/point_to_point.h: accept_start": "messages",
    "collectives/messages/point_to_point.h: accept_turned_down": "messages",
    "collectives/messages/point_to_point.h: admit": "messages",
    "collectives/messages/point_to_point.h: take": "messages",
    "collectives/group/rendezvous.h: decode_table": "rendezvous",
    "collectives/control_message.h: decode_roll_call": "roll_call",
    "infer/graph_json.h: graph_from_json": "graph",
    "infer/link/arrivals.h: take": "arrivals",
    "infer/profile.h: profile_from_json": "saved_json",
    "infer/safety/admit.h: admit": "admit",
    "infer/safety/admit.h: admit_call": "admit",
    "infer/wire/codecs.h: unpack": "codecs",
    "infer/wire/few_values.h: unpack_few_values": "codecs",
    "infer/link/payload_ring.h: PayloadReader": "wire_frames",
    "infer/wire/frame.h: FrameParser": "wire_frames",
    "infer/wire/images.h: unpack_jpeg": "codecs",
    "infer/wire/jpeg.h: decode_jpeg": "codecs",
    "infer/wire/lossy.h: unpack_half": "codecs",
    "infer/wire/lossy.h: unpack_int8": "codecs",
    "infer/wire/messages.h: decode": "wire_messages",
    "json/parse.h: parse": "plan_files",
    "plan/batches/adapter.h: from_json": "plan_requests",
    "plan/cost.h: from_json": "plan_requests",
    "plan/layers/json.h: layers_from_json": "plan_files",
    "plan/batches/membership.h: membership_from_json": "plan_requests",
    "plan/operators/json.h: read_link": "plan_files",
    "plan/operators/json.h: read_operators": "plan_files",
    "plan/batches/policies.h: from_json": "plan_requests",
    "plan/operators/published_profile.h: published_profile": "plan_files",
    "redis/protocol.h: ReplyReader": "redis_replies",
    "redis/protocol.h: feed": "redis_replies",
    "redis/url.h: parse_url": "redis_url",
    "transport/address.h: parse_ip": "address",
    "transport/address.h: parse_tcp_address": "address",
    "transport/endpoint.h: decode": "address",
    "transport/handshake/handshake.h: receive": "handshake",
    "transport/frame.h: read_as": "tcp_frames",
    "transport/stream/host_port.h: parse_host_port": "host_port",
    "transport/shm/ring.h: RingReader": "shm_ring",
    "transport/shm/wire.h: MessageParser": "shm_messages",
    "transport/shm/wire.h: decode": "shm_messages",
    "transport/tcp/reassembly.h: ControlReader": "control_reader",
    "transport/tcp/parser.h: Parser": "tcp_frames",
    "transport/tcp/parser.h: consume": "tcp_frames",
    "transport/stream/tls_session.h: give": "tls_session",
    "transport/ucx/agreement.h: receive": "ucx_agreement",
}

# Declarations in headers that no target reaches, and why.
EXEMPT = {
    "collectives/reduce/blocks.h: unpack_blocks": "the sizes are the receiver's own, and all bits are numbers",
    "collectives/reduce/blocks_table.h: unpack": "as unpack_blocks, for one set of instructions",
    "core/bytes.h: ByteReader": "what most targets' parsers read with",
    "infer/argument_reader.h: ArgumentReader": "what admission and rules read a graph's arguments with",
    "infer/serve/incoming_model.h: take_weights": "takes the next bytes of an announced number, or refuses them",
    "infer/serve/served_model.h: take_weights": "hands them to the model that comes in",
    "infer/session/in_flight.h: take": "hands rows to arrivals, once the inference is a known one",
    "infer/worker/step_admission.h: admit_program": "takes what division and admit have let in",
    "transport/rails/interfaces.h: parse_core_list": "the kernel's list in sysfs of this machine",
    "transport/rails/rails.h: parse_rail_settings": "an environment variable of this process's user",
    "transport/tcp/link.h: take_control_on_loop": "hands on what Parser or ControlReader have read",
}


def declared(header: str) -> set[str]:
    """Returns the names in a header's text that look like parsers."""
    text = COMMENT.sub("", header)
    functions = {
        telling or taking for telling, taking, given in FUNCTION.findall(text) if telling or re.search(GIVEN, given)
    }
    return functions | set(CLASS.findall(text))


def parsers() -> set[str]:
    """Returns all parsers in the sources, as "layer/header.h: name"."""
    return {
        f"{path.relative_to(LAYERS)}: {name}"
        for path in sorted(LAYERS.rglob("*.h"))
        for name in declared(path.read_text())
    }


def targets() -> dict[str, Path]:
    return {path.name.removesuffix("_fuzz.cpp"): path for path in FUZZ.glob("*_fuzz.cpp")}


def test_every_target_calls_its_parser() -> None:
    assert set(targets()) == set(PARSERS)
    for name, path in targets().items():
        text = path.read_text()
        included = [line.partition("tests/fuzz/")[2].rstrip('"') for line in text.splitlines() if "tests/fuzz/" in line]
        sources = [text, *((FUZZ / header).read_text() for header in included)]
        assert any(PARSERS[name] in source for source in sources), name


def test_every_parser_has_a_target_or_a_reason() -> None:
    found = parsers()
    assert found - set(REACHED) - set(EXEMPT) == set(), "name the target, or why there is none"
    assert {*REACHED, *EXEMPT} - found == set(), "is gone"
    assert set(REACHED) & set(EXEMPT) == set()
    assert set(REACHED.values()) <= set(PARSERS)
    assert all(len(reason.split()) >= 4 for reason in EXEMPT.values())


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("std::optional<Report> decode_report(std::span<const std::byte> body);", {"decode_report"}),
        ("  static Cost from_json(const std::string& text);", {"from_json"}),
        ("Url parse_url(\n    const std::string& text);", {"parse_url"}),
        ("  void feed(std::span<const std::byte> bytes);", {"feed"}),
        ("  bool take(const Head& head,\n            const transport::Frame& frame);", {"take"}),
        ("class NewsReader final : public Sink {\n};", {"NewsReader"}),
        ("  void take(int index);\nclass Reader;\n// Foo decode(std::span<const std::byte> bytes);", set()),
        ("inline int f() {\n  return decode(bytes);\n}", set()),
    ],
)
def test_what_counts_as_a_parser(header: str, found: set[str]) -> None:
    assert declared(header) == found


def test_every_target_has_seeds_that_are_kept() -> None:
    seeds = {folder.name: list(folder.iterdir()) for folder in (FUZZ / "seeds").iterdir()}
    assert set(seeds) == set(targets())
    assert {name: len(files) for name, files in seeds.items() if len(files) < 2} == {}
