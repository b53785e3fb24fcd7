// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/roll_call.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <utility>

#include "atoll/collectives/describe.h"

namespace atl::collectives {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxTables = 4;
constexpr std::size_t kMaxListed = 12;
constexpr int kBackoff = 3;
// A rank that has not answered for this long, although it is queried every second, is reported as silent.
constexpr milliseconds kSilence{4000};
// A rank that has entered may itself wait for another one, and it takes a moment until that is known.
constexpr milliseconds kNewsTake{2000};

milliseconds between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration_cast<milliseconds>(std::max(to - from, Clock::duration::zero()));
}

std::string seconds(milliseconds duration) {
  char text[32];
  const double value = static_cast<double>(duration.count()) / 1000;
  std::snprintf(text, sizeof text, value < 10 ? "%.1f s" : "%.0f s", value);
  return text;
}

std::string time_of_day(Clock::time_point when, Clock::time_point now) {
  const auto wall =
      std::chrono::system_clock::now() - std::chrono::duration_cast<std::chrono::system_clock::duration>(now - when);
  const std::time_t whole = std::chrono::system_clock::to_time_t(wall);
  std::tm parts{};
  localtime_r(&whole, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%H:%M:%S", &parts);
  return text;
}

}  // namespace

/// How far the other ranks have come in one collective.
struct RollCall::Findings {
  std::vector<int> away, queued, input, silent;
  std::vector<int> sending;          // awaited ranks that have entered: only their data is missing
  std::vector<int> waiting;          // includes this rank
  std::optional<RankProgress> last;  // of the first rank that is away or queued
  Clock::time_point waiting_since{};
};

RollCall::RollCall(Options options) : options_(std::move(options)) {}

RollCall::Table& RollCall::table(std::uint64_t sequence) {
  const auto known = std::ranges::find(tables_, sequence, &Table::sequence);
  if (known != tables_.end()) return *known;
  if (tables_.size() == kMaxTables) tables_.erase(std::ranges::min_element(tables_, {}, &Table::sequence));
  return tables_.emplace_back(Table{sequence, std::vector<Known>(options_.labels.size())});
}

const RollCall::Table* RollCall::find(std::uint64_t sequence) const {
  const auto found = std::ranges::find(tables_, sequence, &Table::sequence);
  return found == tables_.end() ? nullptr : &*found;
}

void RollCall::record(const RollCallMessage& message, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Table& known = table(message.sequence);
  for (const RankProgress& where : message.ranks) {
    const auto rank = static_cast<std::size_t>(where.rank);
    if (where.rank == options_.rank || rank >= known.ranks.size()) continue;
    Known& entry = known.ranks[rank];
    if (entry.heard && now - where.reported < entry.reported) continue;
    entry = {true, where, now - where.since, now - where.reported};
  }
}

RollCallMessage RollCall::message(std::uint64_t sequence, const RankProgress& own, bool wants_reply,
                                  Clock::time_point now) const {
  RollCallMessage message{wants_reply, sequence, {}};
  const std::lock_guard lock(mutex_);
  if (const Table* known = find(sequence)) {
    for (const Known& entry : known->ranks) {
      if (!entry.heard) continue;
      message.ranks.push_back(entry.where);
      message.ranks.back().since = between(entry.since, now);
      message.ranks.back().reported = between(entry.reported, now);
    }
  }
  std::ranges::stable_sort(message.ranks, {}, &RankProgress::stage);
  message.ranks.insert(message.ranks.begin(), own);
  if (message.ranks.size() > kMaxRollCallRanks) message.ranks.resize(kMaxRollCallRanks);
  return message;
}

RollCall::Findings RollCall::find_out(const Stall& stall, Clock::time_point now) const {
  Findings found;
  found.waiting_since = stall.entered;
  const Table* known = find(stall.sequence);
  const auto is_awaited = [&](int rank) { return std::ranges::find(stall.peers, rank) != stall.peers.end(); };
  for (int rank = 0; rank < static_cast<int>(options_.labels.size()); ++rank) {
    if (rank == options_.rank) {
      found.waiting.push_back(rank);
      continue;
    }
    const Known entry = known ? known->ranks[static_cast<std::size_t>(rank)] : Known{};
    const auto last_word = entry.heard ? std::max(entry.reported, stall.since) : stall.since;
    if (is_awaited(rank) && now - last_word > kSilence && entry.where.stage != Stage::kDone) {
      found.silent.push_back(rank);
      continue;
    }
    if (!entry.heard) continue;
    const Stage stage = entry.where.stage;
    if (stage == Stage::kAway) found.away.push_back(rank);
    if (stage == Stage::kQueued) found.queued.push_back(rank);
    if (stage == Stage::kInput) found.input.push_back(rank);
    if ((stage == Stage::kInside || stage == Stage::kDone) && is_awaited(rank)) found.sending.push_back(rank);
    if (stage <= Stage::kQueued && !found.last) {
      found.last = entry.where;
      found.last->since = between(entry.since, now);
    }
    if (stage == Stage::kAway || stage == Stage::kDone) continue;
    found.waiting.push_back(rank);
    found.waiting_since = std::min(found.waiting_since, entry.since);
  }
  return found;
}

std::string RollCall::list(const std::vector<int>& ranks) const {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMaxListed); ++i)
    text += (i == 0 ? "" : ", ") + options_.labels[static_cast<std::size_t>(ranks[i])];
  if (ranks.size() > kMaxListed) text += " and " + std::to_string(ranks.size() - kMaxListed) + " more";
  return text;
}

// Returns "rank 3 has", or "ranks 3, 5 have".
std::string RollCall::have(const std::vector<int>& ranks) const {
  return list(ranks) + (ranks.size() == 1 ? " has" : " have");
}

std::string RollCall::heading() const {
  return "group \"" + options_.group + "\" on rank " + std::to_string(options_.rank) + ": ";
}

std::string RollCall::absence(const Findings& findings, const std::string& what, Clock::time_point now) const {
  std::string text =
      have(findings.away) + " not entered " + what + " for " + seconds(between(findings.waiting_since, now));
  if (findings.away.size() > 1 || !findings.last) return text;
  const RankProgress& last = *findings.last;
  if (!last.has_last) return text + " (it has called no collective of this group yet)";
  return text + " (its last was " + numbered(last.last, last.last_sequence) + ", " +
         (last.last_done ? "done " : "not done, called ") + seconds(last.since) + " ago)";
}

std::string RollCall::describe_findings(const Stall& stall, const Findings& findings, const std::string& what,
                                        Clock::time_point now) const {
  std::vector<std::string> parts;
  if (!findings.away.empty()) parts.push_back(absence(findings, what, now));
  if (!findings.silent.empty()) {
    parts.push_back(have(findings.silent) + " not answered for " + seconds(between(stall.since, now)) +
                    ": stopped, short of processor time, or the network in between is blocked");
  }
  if (!findings.queued.empty()) {
    std::string where;
    if (findings.last && findings.last->stage == Stage::kQueued && findings.last->has_last)
      where = " (still in " + numbered(findings.last->last, findings.last->last_sequence) + ")";
    parts.push_back(have(findings.queued) + " called " + what + " but not started it" + where);
  }
  if (!findings.input.empty()) {
    parts.push_back(have(findings.input) + " called " + what +
                    " but not received the input from the device or the island's other ranks");
  }
  if (parts.empty() && !findings.sending.empty() && now - stall.since >= kNewsTake) {
    std::string ways;
    for (const int rank : findings.sending) {
      const std::string way = options_.way && ways.size() < 200 ? options_.way(rank) : "";
      if (!way.empty()) ways += (ways.empty() ? " (" : "; ") + way;
    }
    parts.push_back(have(findings.sending) + " entered " + what + " as well, but no data has moved for " +
                    seconds(between(stall.since, now)) + ": the link is slow or blocked" + ways +
                    (ways.empty() ? "" : ")"));
  }
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

std::optional<std::string> RollCall::report(const Stall& stall, Clock::time_point now) {
  if (options_.slow_after.count() <= 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (stall_ != stall.since) {
    stall_ = stall.since;
    next_ = options_.slow_after;
  }
  if (now - stall.since < next_) return std::nullopt;
  while (now - stall.since >= next_) next_ *= kBackoff;
  const Findings findings = find_out(stall, now);
  if (!has_reported_ || reported_ != stall.sequence) named_.clear();
  has_reported_ = true;
  reported_ = stall.sequence;
  for (const int rank : findings.away) {
    if (std::ranges::find(named_, rank) == named_.end()) named_.push_back(rank);
  }
  std::string cause = describe_findings(stall, findings, stall.name, now);
  if (cause.empty()) {
    const std::string awaited =
        stall.peers.empty() ? "its input from the device" : list({stall.peers.begin(), stall.peers.end()});
    cause = stall.name + " has waited for " + awaited + " for " + seconds(between(stall.since, now));
  }
  return heading() + cause + "; " + have(findings.waiting) + " been waiting since " +
         time_of_day(findings.waiting_since, now);
}

std::optional<std::string> RollCall::finish(const Stall& stall, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (!has_reported_ || reported_ != stall.sequence) return std::nullopt;
  has_reported_ = false;
  const Findings findings = find_out(stall, now);
  const std::string after = " after " + seconds(between(findings.waiting_since, now));
  return heading() + (named_.empty() ? stall.name + " was done" : list(named_) + " entered " + stall.name) + after;
}

std::string RollCall::explain(const Stall& stall, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return describe_findings(stall, find_out(stall, now), "it", now);
}

}  // namespace atl::collectives
