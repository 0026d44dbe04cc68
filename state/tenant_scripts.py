"""What Redis does atomically about tenants, in Lua. Time is the server's.

    {ns}:keys            hash  key id -> JSON of KeyRecord
    {ns}:limit:KEY       hash  r, r_at, t, t_at: levels of two token buckets, and when they were so
    {ns}:running:KEY     zset  lease -> when it ends by itself
    {ns}:quota:DAY       hash  key id -> weighted tokens
    {ns}:usage:DAY       hash  key id, model, batch, counter -> sum
    {ns}:settled:ROUTER  the last batch of that router that was taken
    {ns}:routers         zset  router -> when it is gone

A bucket holds a minute's worth at most and fills evenly; outputs, known only afterwards, may leave
it below zero. Over any w seconds it grants at most limit x (1 + w / 60).
"""

from __future__ import annotations

_COMMON = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

local function level(key, name, limit)
  local raw = redis.call('HMGET', key, name, name .. '_at')
  if not raw[1] then return limit end
  local age = math.max(0, now - tonumber(raw[2]))
  return math.min(limit, tonumber(raw[1]) + age * limit / 60)
end

local function keep(key, name, value)
  redis.call('HSET', key, name, string.format('%.6f', value), name .. '_at',
    string.format('%.6f', now))
end

local function expire(key, limit, value)
  -- Full again by then, which is what an absent bucket is.
  local full = math.ceil((limit - value) * 60 / limit) + 60
  if redis.call('TTL', key) < full then redis.call('EXPIRE', key, full) end
end
"""

ACQUIRE = (
    _COMMON
    + """
local limit_key, running_key, quota_key = KEYS[1], KEYS[2], KEYS[3]
local key_id, lease = ARGV[1], ARGV[2]
local lease_s = tonumber(ARGV[3])
local requests, tokens = tonumber(ARGV[4]), tonumber(ARGV[5])
local rpm, tpm = tonumber(ARGV[6]), tonumber(ARGV[7])
local concurrency, daily = tonumber(ARGV[8]), tonumber(ARGV[9])

local r = rpm >= 0 and level(limit_key, 'r', rpm) or 0
local t = tpm >= 0 and level(limit_key, 't', tpm) or 0
local used = tonumber(redis.call('HGET', quota_key, key_id) or '0')
local function answer(denial, wait)
  return {denial, string.format('%.3f', wait), string.format('%.3f', r),
    string.format('%.3f', t), used}
end

if daily >= 0 and used + tokens > daily then return answer('quota', 0) end
if concurrency >= 0 and lease ~= '' then
  redis.call('ZREMRANGEBYSCORE', running_key, '-inf', now)
  if redis.call('ZCARD', running_key) >= concurrency then return answer('concurrency', 1) end
end
if rpm >= 0 and r < requests then return answer('requests', (requests - r) * 60 / rpm) end
if tpm >= 0 and tokens > tpm then return answer('too_large', 0) end
if tpm >= 0 and t < tokens then return answer('tokens', (tokens - t) * 60 / tpm) end

if rpm >= 0 then
  r = r - requests
  keep(limit_key, 'r', r)
  expire(limit_key, rpm, r)
end
if tpm >= 0 then
  t = t - tokens
  keep(limit_key, 't', t)
  expire(limit_key, tpm, t)
end
if concurrency >= 0 and lease ~= '' then
  redis.call('ZADD', running_key, string.format('%.3f', now + lease_s), lease)
  local longest = math.ceil(lease_s) + 60
  if redis.call('TTL', running_key) < longest then
    redis.call('EXPIRE', running_key, longest)
  end
end
if daily >= 0 then
  used = redis.call('HINCRBY', quota_key, key_id, tokens)
  redis.call('EXPIRE', quota_key, 172800)
end
return answer('', 0)
"""
)

SETTLE = (
    _COMMON
    + """
local prefix, sequence = ARGV[1], tonumber(ARGV[2])
if tonumber(redis.call('GET', KEYS[1]) or '-1') >= sequence then return 0 end
redis.call('SET', KEYS[1], sequence, 'EX', 86400)

local function adjust(key, name, limit, delta, share)
  if limit < 0 or (delta == 0 and share >= 1) then return end
  local value = math.min(limit, level(key, name, limit) - delta, math.max(0, limit * share))
  keep(key, name, value)
  expire(key, limit, value)
end

for _, entry in ipairs(cjson.decode(ARGV[3])) do
  local limit_key = prefix .. ':limit:' .. entry.key
  adjust(limit_key, 'r', entry.rpm, entry.requests, entry.shares[1])
  adjust(limit_key, 't', entry.tpm, entry.tokens, entry.shares[2])
  for _, lease in ipairs(entry.leases) do
    redis.call('ZREM', prefix .. ':running:' .. entry.key, lease)
  end
  if entry.quota and entry.quota_tokens ~= 0 then
    local quota_key = prefix .. ':quota:' .. entry.day
    redis.call('HINCRBY', quota_key, entry.key, entry.quota_tokens)
    redis.call('EXPIRE', quota_key, 172800)
  end
  for _, counted in ipairs(entry.usage) do
    local usage_key = prefix .. ':usage:' .. entry.day
    redis.call('HINCRBY', usage_key, counted[1], counted[2])
    redis.call('EXPIRE', usage_key, 34560000)
  end
end
return 1
"""
)

BEAT = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('ZADD', KEYS[1], string.format('%.3f', now + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZCARD', KEYS[1])
"""
