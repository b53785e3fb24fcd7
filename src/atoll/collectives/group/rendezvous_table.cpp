// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>

#include "atoll/collectives/group/rendezvous.h"
#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/transport/address.h"

namespace atl::collectives {
namespace {

constexpr std::uint32_t kMagic = 0x544d5441;  // "ATMT"
constexpr std::size_t kMaxLabelBytes = 1024;
constexpr std::size_t kMaxProblemBytes = 4096;
constexpr std::size_t kMaxMemberBytes = 16384;
constexpr std::size_t kKeyBytes = 32;
constexpr std::uint32_t kMaxRanks = 1 << 20;

enum Flag : std::uint8_t { kKeyFromFile = 1, kTls = 2, kFlatReduce = 4, kCheckData = 8, kAllFlags = 15 };

constexpr std::uint8_t kMaxCheckValues = 2;  // raise

[[noreturn]] void bad(const std::string& what) { throw Error(ErrorKind::kProtocol, what); }

void write_blob(ByteWriter& writer, std::span<const std::byte> blob) {
  writer.integer(static_cast<std::uint32_t>(blob.size()));
  writer.bytes(blob);
}

std::span<const std::byte> read_blob(ByteReader& reader, std::size_t limit) {
  const std::size_t length = reader.integer<std::uint32_t>();
  if (length > limit) bad("a field of " + std::to_string(length) + " bytes, of at most " + std::to_string(limit));
  return reader.bytes(length);
}

std::vector<std::byte> encode_member(const Member& member) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.integer(member.wire_version);
  if (member.wire_version != kWireVersion) return bytes;
  writer.integer(member.size);
  writer.integer(member.attempt);
  writer.integer(static_cast<std::uint8_t>((member.key_from_file ? kKeyFromFile : 0) | (member.tls ? kTls : 0) |
                                           (member.flat_reduce ? kFlatReduce : 0) |
                                           (member.check_data ? kCheckData : 0)));
  writer.integer(member.check_values);
  writer.string(member.island, kMaxLabelBytes);
  writer.string(member.device, kMaxLabelBytes);
  writer.string(member.library, kMaxLabelBytes);
  writer.string(member.problem.substr(0, kMaxProblemBytes), kMaxProblemBytes);
  writer.integer(std::bit_cast<std::uint64_t>(member.uplink));
  write_blob(writer, member.address.encode());
  return bytes;
}

Member decode_member(std::span<const std::byte> bytes) {
  ByteReader reader(bytes, "a member's entry");
  Member member;
  member.wire_version = reader.integer<std::uint32_t>();
  if (member.wire_version != kWireVersion) return member;
  member.size = reader.integer<std::uint32_t>();
  member.attempt = reader.integer<std::uint32_t>();
  const auto flags = reader.integer<std::uint8_t>();
  if (flags > kAllFlags) bad("unknown flags in a member's entry");
  member.key_from_file = (flags & kKeyFromFile) != 0;
  member.tls = (flags & kTls) != 0;
  member.flat_reduce = (flags & kFlatReduce) != 0;
  member.check_data = (flags & kCheckData) != 0;
  member.check_values = reader.integer<std::uint8_t>();
  if (member.check_values > kMaxCheckValues) bad("invalid value of check_values in a member's entry");
  member.island = reader.string(kMaxLabelBytes);
  member.device = reader.string(kMaxLabelBytes);
  member.library = reader.string(kMaxLabelBytes);
  member.problem = reader.string(kMaxProblemBytes);
  member.uplink = std::bit_cast<double>(reader.integer<std::uint64_t>());
  if (!std::isfinite(member.uplink) || member.uplink < 0) bad("an uplink that is not finite and non-negative");
  member.address = transport::PeerAddress::decode(read_blob(reader, transport::kMaxAddressBytes));
  reader.expect_end();
  return member;
}

int read_rank(ByteReader& reader) {
  const auto rank = reader.integer<std::uint32_t>();
  if (rank >= kMaxRanks) bad("an entry of rank " + std::to_string(rank));
  return static_cast<int>(rank);
}

}  // namespace

std::vector<std::byte> encode(const MemberTable& table) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.integer(kMagic);
  writer.integer(static_cast<std::uint32_t>(table.members.size()));
  for (const auto& [rank, member] : table.members) {
    writer.integer(static_cast<std::uint32_t>(rank));
    write_blob(writer, encode_member(member));
  }
  writer.integer(static_cast<std::uint32_t>(table.missing.size()));
  for (const int rank : table.missing) writer.integer(static_cast<std::uint32_t>(rank));
  writer.integer(table.group_id);
  write_blob(writer, table.key);
  return bytes;
}

MemberTable decode_table(std::span<const std::byte> bytes) {
  ByteReader reader(bytes, "a table of members");
  if (reader.integer<std::uint32_t>() != kMagic) bad("it does not start with the header of this version of Atoll");
  MemberTable table;
  for (std::uint32_t left = reader.integer<std::uint32_t>(); left != 0; --left) {
    const int rank = read_rank(reader);
    const bool is_new = table.members.emplace(rank, decode_member(read_blob(reader, kMaxMemberBytes))).second;
    if (!is_new) bad("two entries of rank " + std::to_string(rank));
  }
  for (std::uint32_t left = reader.integer<std::uint32_t>(); left != 0; --left) {
    table.missing.push_back(read_rank(reader));
  }
  table.group_id = reader.integer<std::uint64_t>();
  const auto key = read_blob(reader, kKeyBytes);
  if (!key.empty() && key.size() != kKeyBytes) bad("a key of " + std::to_string(key.size()) + " bytes");
  table.key.assign(key.begin(), key.end());
  reader.expect_end();
  return table;
}

}  // namespace atl::collectives
