// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::redis {

/// How the keys of a job lie in Redis. All of them begin with "atoll:{JOB}:", and expire together.
///   job      hash     incarnation, created (seconds since 1970), world_size; without it there is no such job
///   keys     hash     the store's keys and values
///   replies  hash     by client the number and the outcome of its last change, so that a repeated call has no effect
///   alive    sorted   clients by the time of their last sign of life, in milliseconds since 1970
///   ranks    hash     by rank the client that is it
///   members  hash     by rank what it says of itself, as JSON
///   queues   set      the names of the lists queue:NAME
inline constexpr const char* kKeyNames[] = {"job", "keys", "replies", "alive", "ranks", "members", "queues"};

/// Joins a job, and begins it anew when none of its clients is alive any more. Runs on the server, at once.
/// Arguments: key prefix, client, incarnation to use, expiry in s, silence in ms after which a client is dead, world
/// size or "", rank or "". Answers {"ok", incarnation}, {"taken", ms since the sign of life of the client that is the rank, or
/// "" when it is dead}, or {"size", world size}.
extern const char* const kOpenScript;

/// One operation of a client that has joined. Arguments: key prefix, incarnation, client, number of its last change
/// that was answered, of this change (0: changes nothing), expiry in s, operation, and what it takes. The errors ATOLLGONE
/// (no such job any more), ATOLLANEW (begun anew by others) and ATOLLSTALE (changes are missing) tell what was lost. A change that
/// arrives behind a later one of its client is not made: ATOLLLATE.
extern const char* const kCallScript;

}  // namespace atl::redis
