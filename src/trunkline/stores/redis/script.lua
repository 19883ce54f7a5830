-- All operations of a Redis store. Redis runs the script atomically.
--
-- A call has one key and accesses only keys that start with it, which lie in the same slot. There are two kinds:
--
--   <prefix>{<home>}    data of a home, by the rest of each key, which is '' for the home itself
--     :m  hash    rest -> "<version>" or "<version> <end>"
--     :v  hash    rest -> value
--     :i  zset    every rest of :m; all scores are 0, so it is ordered by bytes
--     :l  hash    name of a lease, its rest -> "<token> <end> <holder>"
--     :x  zset    entries by expiry: 'i' .. rest, or 'l' .. name
--     :last       the last version or token; outlives the other data for a while
--   <prefix>{homes}     index of homes
--     :all     zset    <home> and <home>/ of each home, the prefixes of its keys; ordered by bytes
--     :due     zset    homes, by the time of their next sweep
--     :schema
--
-- Versions and tokens are the time in microseconds, or one more than the last. They are integers below 2^53, which a
-- double represents exactly; Lua's default format has only 14 digits.

local at, asked = KEYS[1], cmsgpack.unpack(ARGV[2])  -- cmsgpack has no bytes, so values are separate arguments
local now = asked[1]
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end

local REMEMBERED = 600  -- seconds for which :last of an empty home is stored: the clock may go back by that much
local REGISTERED = 60  -- seconds from registration to the first sweep
local CLAIMED = 90.5  -- the same during a sweep; its fraction distinguishes it from a registration

local function exact(number)
  return string.format('%.17g', number)
end

local function newer()
  return math.max(tonumber(redis.call('GET', at .. ':last') or 0) + 1, math.floor(now * 1000000))
end

local function give(number)
  redis.call('SET', at .. ':last', exact(number))
end

-- Return the version of an item, or 0, and its expiry, or false.
local function version_of(rest)
  local kept = redis.call('HGET', at .. ':m', rest)
  if not kept then return 0, false end
  local version, ends = string.match(kept, '^(%d+) ?(.*)$')
  ends = tonumber(ends) or false
  if ends and ends <= now then return 0, false end
  return tonumber(version), ends
end

local function forget(rest)
  redis.call('HDEL', at .. ':m', rest)
  redis.call('HDEL', at .. ':v', rest)
  redis.call('ZREM', at .. ':i', rest)
end

-- Return token, expiry and holder of a lease, or nothing if it is free.
local function lease_of(name)
  local kept = redis.call('HGET', at .. ':l', name)
  if not kept then return end
  local token, ends, holder = string.match(kept, '^(%d+) (%S+) (.*)$')
  if tonumber(ends) > now then return tonumber(token), ends, holder end
end

local function keep_lease(name, token, holder, ttl)
  local ends = exact(now + ttl)
  redis.call('HSET', at .. ':l', name, exact(token) .. ' ' .. ends .. ' ' .. holder)
  redis.call('ZADD', at .. ':x', ends, 'l' .. name)
  return ends
end

local function drop_lease(name)
  redis.call('HDEL', at .. ':l', name)
  redis.call('ZREM', at .. ':x', 'l' .. name)
end

local does = {}

-- Of one home ---------------------------------------------------------------------------------------------------------

-- Return {-index, version found} of the first write that expects another version, or nothing.
local function conflict_of(writes)
  for which, write in ipairs(writes) do
    if write[2] then
      local found = version_of(write[1])
      if found ~= write[2] then return {-which, found} end
    end
  end
end

-- Publish the rests that are written, then write them all under a new version, and return that. A write is
-- {rest, version, end, number of the value}; one without a value deletes.
local function apply(sender, writes)
  local rests = {sender}
  for which, write in ipairs(writes) do rests[which + 1] = write[1] end
  local version = newer()
  -- One of these two may fail, for lack of permission or memory; then nothing was written. The rest cannot fail.
  redis.call('PUBLISH', at, table.concat(rests, '\n'))
  give(version)
  local text = exact(version)
  for _, write in ipairs(writes) do
    local rest, ends, value = write[1], write[3], ARGV[write[4] or 0]
    if not value then
      forget(rest)
      redis.call('ZREM', at .. ':x', 'i' .. rest)
    else
      redis.call('HSET', at .. ':m', rest, ends and text .. ' ' .. exact(ends) or text)
      redis.call('HSET', at .. ':v', rest, value)
      redis.call('ZADD', at .. ':i', 0, rest)
      if ends then
        redis.call('ZADD', at .. ':x', exact(ends), 'i' .. rest)
      else
        redis.call('ZREM', at .. ':x', 'i' .. rest)
      end
    end
  end
  return version
end

-- now, sender, fence, its token, writes, whether to release the fence: returns the version, 0 if the fence is lost, or
-- a conflict.
function does.commit()
  local fence, writes = asked[3], asked[5]
  if fence and lease_of(fence) ~= asked[4] then return 0 end
  local conflict = conflict_of(writes)
  if conflict then return conflict end
  local version = apply(asked[2], writes)
  if fence and asked[6] then drop_lease(fence) end
  return version
end

-- now, rest: returns {version, end, value}.
function does.get()
  local version, ends = version_of(asked[2])
  if version == 0 then return false end
  return {version, ends and exact(ends), redis.call('HGET', at .. ':v', asked[2])}
end

-- now, from, upto, limit: returns {rest, version, end, value, rest...}.
function does.page()
  local from, found = asked[2], {}
  local missing = asked[4]
  while missing > 0 do
    local rests = redis.call('ZRANGEBYLEX', at .. ':i', from, asked[3], 'LIMIT', 0, missing)
    if #rests == 0 then break end
    for _, rest in ipairs(rests) do
      local version, ends = version_of(rest)
      if version ~= 0 then
        local size = #found
        found[size + 1], found[size + 2], found[size + 3] = rest, version, ends and exact(ends)
        found[size + 4] = redis.call('HGET', at .. ':v', rest)
        missing = missing - 1
      end
    end
    from = '(' .. rests[#rests]
  end
  return found
end

-- now, name, holder, ttl, token of a holder to override, sender, writes: returns {token, end}, {0, end, holder, token}
-- if another holder has it, or a conflict.
function does.acquire()
  local name, holder, sender, writes = asked[2], asked[3], asked[6], asked[7]
  local token, ends, other = lease_of(name)
  if token and other ~= holder and token ~= asked[5] then return {0, ends, other, token} end
  local conflict = conflict_of(writes)
  if conflict then return conflict end
  if #writes > 0 then
    token = apply(sender, writes)
  else
    token = newer()
    give(token)
  end
  return {token, keep_lease(name, token, holder, asked[4])}
end

-- now, name, token, holder, ttl: returns the expiry, or nothing if the lease is lost.
function does.renew()
  local name, token = asked[2], asked[3]
  if lease_of(name) ~= token then return false end
  return keep_lease(name, token, asked[4], asked[5])
end

-- now, name, token
function does.release()
  if lease_of(asked[2]) == asked[3] then drop_lease(asked[2]) end
  return 1
end

-- now, limit: deletes expired data. Returns the time of the next sweep, 'inf' for never, or '' if the home is empty.
function does.sweep()
  local expired = redis.call('ZRANGEBYSCORE', at .. ':x', '-inf', exact(now), 'LIMIT', 0, asked[2])
  for _, member in ipairs(expired) do
    local rest = string.sub(member, 2)
    if string.sub(member, 1, 1) == 'i' then forget(rest) else redis.call('HDEL', at .. ':l', rest) end
    redis.call('ZREM', at .. ':x', member)
  end
  local first = redis.call('ZRANGE', at .. ':x', 0, 0, 'WITHSCORES')
  if first[2] then return first[2] end
  if redis.call('EXISTS', at .. ':i') == 1 then return 'inf' end
  local upto = tonumber(redis.call('GET', at .. ':last') or 0) / 1000000 + REMEMBERED
  if upto > now then return exact(upto) end
  redis.call('DEL', at .. ':last')
  return ''
end

-- Of all homes --------------------------------------------------------------------------------------------------------

-- now, home: registers a home before a write. Scans find a home that is written to within a minute.
function does.register()
  redis.call('ZADD', at .. ':all', 0, asked[2], 0, asked[2] .. '/')
  redis.call('ZADD', at .. ':due', math.floor(now) + REGISTERED, asked[2])
  return 1
end

-- now, limit: claims homes that are due for a sweep; returns the claim and the homes.
function does.claim()
  local homes = redis.call('ZRANGEBYSCORE', at .. ':due', '-inf', exact(now), 'LIMIT', 0, asked[2])
  local claim = exact(math.floor(now) + CLAIMED)
  for _, home in ipairs(homes) do redis.call('ZADD', at .. ':due', claim, home) end
  return {claim, homes}
end

-- now, home, claim, result of its sweep: changes nothing if the home was registered meanwhile.
function does.settle()
  local home, again = asked[2], asked[4]
  local claim = redis.call('ZSCORE', at .. ':due', home)
  if not claim or tonumber(claim) ~= tonumber(asked[3]) then return 0 end
  if again == '' then redis.call('ZREM', at .. ':all', home, home .. '/') end
  if again == '' or again == 'inf' then
    redis.call('ZREM', at .. ':due', home)
  else
    redis.call('ZADD', at .. ':due', again, home)
  end
  return 1
end

-- now, schema: returns the schema of the data.
function does.hello()
  redis.call('SET', at .. ':schema', asked[2], 'NX')
  return redis.call('GET', at .. ':schema')
end

return does[ARGV[1]]()
