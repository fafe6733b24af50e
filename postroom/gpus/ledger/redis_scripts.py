"""The scripts that Redis runs, each of them atomically.

KEYS[1] is the prefix. Tokens and numbers are text, since they are too long for Lua's JSON.
"""

# Remove expired entries; return the version, then id, text, number and token of each entry.
SNAPSHOT = """
local entries, version = KEYS[1] .. ':entries', KEYS[1] .. ':version'
local numbers, tokens = KEYS[1] .. ':numbers', KEYS[1] .. ':tokens'
local found = redis.call('HGETALL', entries)
local answer = {}
for i = 1, #found, 2 do
  local id = found[i]
  local number, token = redis.call('HGET', numbers, id), redis.call('HGET', tokens, id)
  if number and token and redis.call('EXISTS', KEYS[1] .. ':alive:' .. id) == 1 then
    for _, value in ipairs({id, found[i + 1], number, token}) do
      answer[#answer + 1] = value
    end
  else
    redis.call('HDEL', entries, id)
    redis.call('HDEL', numbers, id)
    redis.call('HDEL', tokens, id)
    redis.call('DEL', version)
  end
end
local now = redis.call('GET', version)
if not now then
  -- Random, so that after a flush no earlier version comes again.
  now = ARGV[1]
  redis.call('SET', version, now)
end
table.insert(answer, 1, now)
return answer
"""

# ARGV: expected version or '', id, number or '', text, milliseconds to live.
# Returns a new token, also the number of an entry that had none; '0' if the version has changed.
PUT = """
local version, fence = KEYS[1] .. ':version', KEYS[1] .. ':fence'
if ARGV[1] ~= '' and redis.call('GET', version) ~= ARGV[1] then return '0' end
local time = redis.call('TIME')
local token = tonumber(redis.call('GET', fence) or '0') + 1
-- From the clock, so that tokens grow even after a flush has removed the last one.
token = string.format('%.0f', math.max(token, time[1] * 1000000 + time[2]))
redis.call('SET', fence, token)
redis.call('SET', version, token)
redis.call('HSET', KEYS[1] .. ':entries', ARGV[2], ARGV[4])
redis.call('HSET', KEYS[1] .. ':numbers', ARGV[2], ARGV[3] ~= '' and ARGV[3] or token)
redis.call('HSET', KEYS[1] .. ':tokens', ARGV[2], token)
redis.call('SET', KEYS[1] .. ':alive:' .. ARGV[2], '1', 'PX', ARGV[5])
return token
"""

# ARGV: id, token, milliseconds to live, text. Returns 0 if the entry is gone or has changed.
CONFIRM = """
if redis.call('HGET', KEYS[1] .. ':tokens', ARGV[1]) ~= ARGV[2] then return 0 end
if redis.call('EXISTS', KEYS[1] .. ':alive:' .. ARGV[1]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1] .. ':alive:' .. ARGV[1], ARGV[3])
redis.call('HSET', KEYS[1] .. ':entries', ARGV[1], ARGV[4])
return 1
"""

# ARGV: id, token, milliseconds to live, number, text. Restores an entry that a flush or restart has
# removed; returns 0 if the entry has another token now.
RENEW = """
local token = redis.call('HGET', KEYS[1] .. ':tokens', ARGV[1])
if token and token ~= ARGV[2] then return 0 end
if not token then
  redis.call('HSET', KEYS[1] .. ':entries', ARGV[1], ARGV[5])
  redis.call('HSET', KEYS[1] .. ':numbers', ARGV[1], ARGV[4])
  redis.call('HSET', KEYS[1] .. ':tokens', ARGV[1], ARGV[2])
  redis.call('DEL', KEYS[1] .. ':version')
end
redis.call('SET', KEYS[1] .. ':alive:' .. ARGV[1], '1', 'PX', ARGV[3])
return 1
"""

# ARGV: id, token. Removes the entry if it still has that token.
DROP = """
if redis.call('HGET', KEYS[1] .. ':tokens', ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1] .. ':entries', ARGV[1])
redis.call('HDEL', KEYS[1] .. ':numbers', ARGV[1])
redis.call('HDEL', KEYS[1] .. ':tokens', ARGV[1])
redis.call('DEL', KEYS[1] .. ':alive:' .. ARGV[1])
redis.call('DEL', KEYS[1] .. ':version')
return 1
"""
