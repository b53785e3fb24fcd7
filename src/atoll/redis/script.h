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
inline constexpr char kOpenScript[] = R"lua(
local prefix, client, incarnation, expiry, silence, size, rank, insists = unpack(ARGV)
local job, alive, ranks = prefix .. 'job', prefix .. 'alive', prefix .. 'ranks'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local is_known = redis.call('EXISTS', job) == 1 and redis.call('EXISTS', alive) == 1
if is_known and insists == '' and redis.call('ZCOUNT', alive, '(' .. now - silence, '+inf') == 0 then
  return {'silent', ''}
end
redis.call('ZREMRANGEBYSCORE', alive, '-inf', now - silence)
if redis.call('ZCARD', alive) == 0 or redis.call('EXISTS', job) == 0 then
  for _, queue in ipairs(redis.call('SMEMBERS', prefix .. 'queues')) do redis.call('DEL', prefix .. 'queue:' .. queue) end
  for _, name in ipairs({'job', 'keys', 'replies', 'alive', 'ranks', 'members', 'queues'}) do
    redis.call('DEL', prefix .. name)
  end
  redis.call('HSET', job, 'incarnation', incarnation, 'created', time[1])
end
if rank ~= '' then
  local known = redis.call('HGET', job, 'world_size')
  if known and known ~= size then return {'size', known} end
  local owner = redis.call('HGET', ranks, rank)
  if owner and owner ~= client then
    local seen = redis.call('ZSCORE', alive, owner)
    if seen then return {'taken', tostring(now - seen)} end
    local youngest = redis.call('ZREVRANGE', alive, 0, 0, 'WITHSCORES')
    return {'dead', tostring(now - youngest[2])}
  end
  redis.call('HSET', job, 'world_size', size)
  redis.call('HSET', ranks, rank, client)
  redis.call('EXPIRE', ranks, expiry)
end
redis.call('ZADD', alive, now, client)
redis.call('EXPIRE', alive, expiry)
redis.call('EXPIRE', job, expiry)
return {'ok', redis.call('HGET', job, 'incarnation')}
)lua";

/// Carries out one operation of a client that has joined. Arguments: key prefix, incarnation, client, number of its
/// last change that was answered, number of this change (0: changes nothing), expiry in s, operation, and its
/// arguments. The errors ATOLLGONE (the job no longer exists), ATOLLANEW (other processes have started it again) and
/// ATOLLSTALE (changes are missing) report what was lost. A change that arrives after a later one of its client is not
/// made: ATOLLLATE.
inline constexpr char kCallScript[] = R"lua(
local prefix, incarnation, client, answered, change, expiry, operation = unpack(ARGV, 1, 7)
answered, change = tonumber(answered), tonumber(change)
local first = 8
local job, keys, replies = prefix .. 'job', prefix .. 'keys', prefix .. 'replies'

local found = redis.call('HGET', job, 'incarnation')
if not found then return redis.error_reply('ATOLLGONE the job has no keys') end
if found ~= incarnation then return redis.error_reply('ATOLLANEW the job was started again') end
local last, outcome = 0, ''
local record = redis.call('HGET', replies, client)
if record then
  local colon = string.find(record, ':', 1, true)
  last, outcome = tonumber(string.sub(record, 1, colon - 1)), string.sub(record, colon + 1)
end
if change > 0 and last == change then
  if outcome == '' then return false end
  return string.sub(outcome, 2)
end
-- It comes from a connection that was given up: its client has made later changes and no longer waits for this one.
if change > 0 and change < last then return redis.error_reply('ATOLLLATE change ' .. change .. ' of ' .. last) end
if last < answered then return redis.error_reply('ATOLLSTALE changes are missing') end

local function each()
  local at = first - 1
  return function() at = at + 1; return ARGV[at] end
end

local reads = {}
function reads.get()
  return redis.call('HGET', keys, ARGV[first])
end
function reads.missing()
  for at = first, #ARGV do
    if redis.call('HEXISTS', keys, ARGV[at]) == 0 then return at - first + 1 end
  end
  return 0
end
function reads.multi_get()
  local values = {}
  for key in each() do values[#values + 1] = redis.call('HGET', keys, key) end
  return values
end
function reads.count()
  return redis.call('HLEN', keys)
end
function reads.list()
  return redis.call('HSCAN', keys, ARGV[first], 'COUNT', 500)
end
function reads.queue_length()
  return redis.call('LLEN', prefix .. 'queue:' .. ARGV[first])
end
function reads.refresh()
  local time = redis.call('TIME')
  redis.call('ZADD', prefix .. 'alive', time[1] * 1000 + math.floor(time[2] / 1000), client)
  for _, name in ipairs({'job', 'keys', 'replies', 'alive', 'ranks', 'members', 'queues'}) do
    redis.call('EXPIRE', prefix .. name, expiry)
  end
  for _, queue in ipairs(redis.call('SMEMBERS', prefix .. 'queues')) do
    redis.call('EXPIRE', prefix .. 'queue:' .. queue, expiry)
  end
  return redis.status_reply('OK')
end
function reads.publish()
  redis.call('HSET', prefix .. 'members', ARGV[first], ARGV[first + 1])
  redis.call('EXPIRE', prefix .. 'members', expiry)
  return redis.status_reply('OK')
end
function reads.leave()
  redis.call('ZREM', prefix .. 'alive', client)
  local rank = ARGV[first]
  if rank ~= '' and redis.call('HGET', prefix .. 'ranks', rank) == client then
    redis.call('HDEL', prefix .. 'ranks', rank)
    redis.call('HDEL', prefix .. 'members', rank)
  end
  if redis.call('ZCARD', prefix .. 'alive') == 0 then
    for _, queue in ipairs(redis.call('SMEMBERS', prefix .. 'queues')) do redis.call('DEL', prefix .. 'queue:' .. queue) end
    for _, name in ipairs({'job', 'keys', 'replies', 'alive', 'ranks', 'members', 'queues'}) do
      redis.call('DEL', prefix .. name)
    end
  end
  return redis.status_reply('OK')
end

local changes = {}
function changes.set()
  for at = first, #ARGV, 2 do redis.call('HSET', keys, ARGV[at], ARGV[at + 1]) end
  return ''
end
function changes.add()
  local answer = redis.pcall('HINCRBY', keys, ARGV[first], ARGV[first + 1])
  if type(answer) == 'table' and answer.err then return answer end
  return redis.call('HGET', keys, ARGV[first])
end
function changes.delete()
  return tostring(redis.call('HDEL', keys, ARGV[first]))
end
function changes.append()
  redis.call('HSET', keys, ARGV[first], (redis.call('HGET', keys, ARGV[first]) or '') .. ARGV[first + 1])
  return ''
end
function changes.compare_set()
  local key, expected, wanted = ARGV[first], ARGV[first + 1], ARGV[first + 2]
  local value = redis.call('HGET', keys, key)
  if value == expected or (not value and expected == '') then
    redis.call('HSET', keys, key, wanted)
    return wanted
  end
  return value or expected
end
function changes.queue_push()
  local queue = prefix .. 'queue:' .. ARGV[first]
  redis.call('RPUSH', queue, ARGV[first + 1])
  redis.call('EXPIRE', queue, expiry)
  redis.call('SADD', prefix .. 'queues', ARGV[first])
  redis.call('EXPIRE', prefix .. 'queues', expiry)
  return ''
end
function changes.queue_pop()
  return redis.call('LPOP', prefix .. 'queue:' .. ARGV[first])
end

if change == 0 then return reads[operation]() end
local answer = changes[operation]()
if type(answer) == 'table' then return answer end
redis.call('HSET', replies, client, change .. ':' .. (answer and '=' .. answer or ''))
redis.call('EXPIRE', replies, expiry)
redis.call('EXPIRE', keys, expiry)
return answer
)lua";

}  // namespace atl::redis
