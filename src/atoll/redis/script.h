// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::redis {

// The keys of a job in Redis. All of them begin with "atoll:{JOB}:", and expire together.
//   job      hash     incarnation, created (seconds since 1970), world_size; the job exists while this key does
//   keys     hash     the store's keys and values
//   replies  hash     for each client the number and outcome of its last change, so that a repeated call has no effect
//   alive    sorted   clients by the time of their last sign of life, in milliseconds since 1970
//   ranks    hash     for each rank its client
//   members  hash     for each rank what it reports about itself, as JSON
//   queues   set      the names of the lists queue:NAME

/// Joins a job, and starts it again when none of its clients is alive. Runs on the server, atomically. Arguments: key
/// prefix, client, incarnation to use, expiry in s, silence in ms after which a client is dead, world size or "", rank
/// or "", "insists" or "". Returns {"ok", incarnation}, {"size", world size}, {"silent", ""} when no client of the job
/// has been heard lately and the caller does not insist, {"taken", ms since the last sign of life of the rank's
/// client}, or {"dead", ms since the last sign of life of any client} when the rank's client is dead.
extern const char* const kOpenScript;

/// Carries out one operation of a client that has joined. Arguments: key prefix, incarnation, client, number of its
/// last change that was answered, number of this change (0: changes nothing), expiry in s, operation, and its
/// arguments. The errors ATOLLGONE (the job no longer exists), ATOLLANEW (other processes have started it again) and
/// ATOLLSTALE (changes are missing) report what was lost. A change that arrives after a later one of its client is not
/// made: ATOLLLATE.
extern const char* const kCallScript;

}  // namespace atl::redis
