"""The scripts that Redis runs. Each runs whole and alone, so what one of them writes is never seen by halves.

Keys, all of them beginning with `{prefix}:`

    meta                hash    store_id and the version of this layout
    totals              hash    rollouts by status, attempts, open ones, spans; the last number, place, finish, version
    r:<rollout>         hash    s state, i input, m metadata, a replaced attempts, v version, n number, f finish
    spans:<attempt>     hash    span id -> the span
    body:<hash>         hash    d a large task, u by how many rollouts it is used
    numbers             zset    rollouts in the order of arrival
    queued, active, succeeded, failed, cancelled    zset    rollouts by place, by number, by finish
    rewards             zset    numbers of rollouts by reward
    deadlines           zset    rollouts by the time when the watchdog looks at them
    held                hash    rollouts that somebody is about to claim or to expire, and requests, until when
    open:<worker>       zset    rollouts in a worker's hands, by the start of the attempt
    unwanted:<worker>   set     attempts that a worker is to give up
    workers, w:<worker> set, hash
    requests            hash    request -> [[rollout, attempt], ...]
    published           list    every version of resources
    versions            hash    where in that list a version stands
    writer:<id>         string  the last change of a writer that was applied
    seats               zset    listeners, by how many of theirs wait for work

Nothing else than the version of a rollout guards it: a change is applied only where every rollout that it was worked
out from is still as it was read. What is held is only a hint that keeps two from working on the same.
"""

import hashlib
from typing import Final

_WAKE = """
local P = KEYS[1]
-- One wake-up for each item: as many seats as there are items, and a listener that is gone gives up its seats.
local function wake(count)
  while count > 0 do
    local found = redis.call('ZRANGE', P .. 'seats', 0, count - 1, 'WITHSCORES')
    if #found == 0 then return count end
    for i = 1, #found, 2 do
      local seats = tonumber(found[i + 1])
      local woken = math.min(seats, count)
      if woken < 1 or redis.call('PUBLISH', P .. 'work:' .. found[i], woken) == 0 then
        redis.call('ZREM', P .. 'seats', found[i])
      else
        count = count - woken
        if woken == seats then
          redis.call('ZREM', P .. 'seats', found[i])
        else
          redis.call('ZINCRBY', P .. 'seats', -woken, found[i])
        end
      end
      if count < 1 then break end
    end
  end
  return 0
end
"""

_ROW = """
local P = KEYS[1]
local function row(id)
  local found = redis.call('HMGET', P .. 'r:' .. id, 'v', 'n', 'f', 's', 'i', 'm', 'a')
  if not found[1] then return false end
  found[8] = id
  return found
end
"""

ROWS: Final = (
    _ROW
    + """
local found = {}
for i, id in ipairs(ARGV) do found[i] = row(id) end
return found
"""
)

# Only the statuses: the first field of each state.
STATUSES: Final = """
local found = {}
for i, id in ipairs(ARGV) do
  local state = redis.call('HGET', KEYS[1] .. 'r:' .. id, 's')
  found[i] = state and string.match(state, '^%["(%a+)"')
end
return found
"""

# Rollouts of a sorted set by rank or by score: set, BYRANK|BYSCORE, start, stop, is_reversed, offset, count.
PAGE: Final = (
    _ROW
    + """
local arguments = {P .. ARGV[1], ARGV[3], ARGV[4]}
if ARGV[2] == 'BYSCORE' then arguments[4] = 'BYSCORE' end
if ARGV[5] == '1' then table.insert(arguments, 'REV') end
if ARGV[2] == 'BYSCORE' then
  table.insert(arguments, 'LIMIT')
  table.insert(arguments, ARGV[6])
  table.insert(arguments, ARGV[7])
end
local found = {}
for _, id in ipairs(redis.call('ZRANGE', unpack(arguments))) do
  if ARGV[1] == 'rewards' then
    local number = tonumber(id)
    id = redis.call('ZRANGE', P .. 'numbers', number, number, 'BYSCORE')[1]
  end
  table.insert(found, row(id))
end
return found
"""
)

# The first rollouts of a sorted set that nobody holds: set, highest score, limit, milliseconds to hold them,
# listener, seats. Who finds too few takes its seats in the same step, so no wake-up falls between the two.
# Answers with the rows, and how many others hold.
TAKE: Final = (
    _ROW
    + """
local limit, from, found, held = tonumber(ARGV[3]), 0, {}, 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
while #found < limit do
  local ids = redis.call('ZRANGE', P .. ARGV[1], '-inf', ARGV[2], 'BYSCORE', 'LIMIT', from, limit + 16)
  if #ids == 0 then break end
  for _, id in ipairs(ids) do
    if #found < limit then
      if tonumber(redis.call('HGET', P .. 'held', id) or '0') > now then
        held = held + 1
      else
        redis.call('HSET', P .. 'held', id, string.format('%.0f', now + tonumber(ARGV[4])))
        table.insert(found, row(id))
      end
    end
  end
  from = from + #ids
end
if #found < limit and tonumber(ARGV[6]) > 0 then redis.call('ZADD', P .. 'seats', ARGV[6], ARGV[5]) end
return {found, held}
"""
)

# The claims of a request: request, writer, milliseconds to hold it. Where there are none it is held, so that the same
# request at another store waits for this answer; HELD is said to that one.
REQUEST: Final = """
local claims = redis.call('HGET', KEYS[1] .. 'requests', ARGV[1])
if claims then return claims end
local held, name, time = KEYS[1] .. 'held', 'request ' .. ARGV[1], redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local till, writer = string.match(redis.call('HGET', held, name) or '0 ', '^(%d+) (.*)$')
if tonumber(till) > now and writer ~= ARGV[2] then return 'HELD' end
redis.call('HSET', held, name, string.format('%.0f %s', now + tonumber(ARGV[3]), ARGV[2]))
return false
"""

# A worker: what is known of it, the rollouts in its hands, the attempts it is to give up.
WORKER: Final = (
    _ROW
    + """
local open = {}
for i, id in ipairs(redis.call('ZRANGE', P .. 'open:' .. ARGV[1], 0, -1)) do open[i] = row(id) end
local known = redis.call('HMGET', P .. 'w:' .. ARGV[1], 'stats', 'beat', 'dequeue', 'busy', 'idle')
return {redis.call('SISMEMBER', P .. 'workers', ARGV[1]), known, open,
        redis.call('SMEMBERS', P .. 'unwanted:' .. ARGV[1])}
"""
)

# Work items that nobody here waits for any more go to somebody else's seat.
WAKE: Final = _WAKE + "return wake(tonumber(ARGV[1]))"

# A change: the writer, its number, and packed: checks, rows, commands, how many were queued, which finished.
# The answer is DONE, also where it had been applied before, or the name of the first thing that is not as it was.
COMMIT: Final = (
    _WAKE
    + """
local writer = P .. 'writer:' .. ARGV[1]
if tonumber(redis.call('GET', writer) or '0') >= tonumber(ARGV[2]) then return 'DONE' end
local change = cmsgpack.unpack(ARGV[3])
local checks, rows, commands, queued, finished = change[1], change[2], change[3], change[4], change[5]

for _, check in ipairs(checks) do
  local kind, key, wanted, is = check[1], check[2], check[3], nil
  if kind == 'row' then
    is = redis.call('HGET', P .. 'r:' .. key, 'v') or ''
  elseif kind == 'request' then
    is = redis.call('HGET', P .. 'requests', key) or ''
  else
    is = tostring(redis.call('LLEN', P .. 'published'))
  end
  if is ~= wanted then return kind .. ' ' .. key end
end

local totals = P .. 'totals'
-- Versions never come again, also not with a rollout that is deleted and created again under its old id.
local version = #rows > 0 and redis.call('HINCRBY', totals, 'version', 1)
for _, row in ipairs(rows) do
  local id, key = row.id, P .. 'r:' .. row.id
  redis.call('HSET', key, 'v', version, unpack(row.fields))
  if row.is_new then
    local number = redis.call('HINCRBY', totals, 'number', 1)
    redis.call('HSET', key, 'n', number)
    redis.call('ZADD', P .. 'numbers', number, id)
  end
  if row.phase ~= row.old_phase then
    if row.old_phase ~= '' then redis.call('ZREM', P .. row.old_phase, id) end
    if row.phase == 'queued' then
      redis.call('ZADD', P .. 'queued', redis.call('HINCRBY', totals, 'place', 1), id)
    elseif row.phase == 'active' then
      redis.call('ZADD', P .. 'active', redis.call('HGET', key, 'n'), id)
    else
      local finish = redis.call('HINCRBY', totals, 'finish', 1)
      redis.call('HSET', key, 'f', finish)
      redis.call('ZADD', P .. row.phase, finish, id)
    end
  end
  if row.reward then
    local member = string.format('%015d', redis.call('HGET', key, 'n'))
    if row.reward == '' then
      redis.call('ZREM', P .. 'rewards', member)
    else
      redis.call('ZADD', P .. 'rewards', row.reward, member)
    end
  end
  redis.call('HDEL', P .. 'held', id)
end

for _, command in ipairs(commands) do
  if command[1] == 'USE' then
    redis.call('HSETNX', P .. 'body:' .. command[2], 'd', command[3])
    redis.call('HINCRBY', P .. 'body:' .. command[2], 'u', 1)
  elseif command[1] == 'UNUSE' then
    if redis.call('HINCRBY', P .. 'body:' .. command[2], 'u', -1) <= 0 then
      redis.call('DEL', P .. 'body:' .. command[2])
    end
  else
    command[2] = P .. command[2]
    redis.call(unpack(command))
  end
end
redis.call('SET', writer, ARGV[2], 'EX', 3600)
if queued > 0 then wake(queued) end
for _, ids in ipairs(finished) do redis.call('PUBLISH', P .. 'finished', ids) end
return 'DONE'
"""
)

# Delete what finished before a time, among so many of a phase from a rank on: phase, rank, count, time.
# Answers with how many went and how many were left where they stood.
SWEEP: Final = """
local P = KEYS[1]
local gone, kept, totals, requests = 0, 0, P .. 'totals', {}
local function let_go(id, key, state)
  local spans = 0
  local number, input = unpack(redis.call('HMGET', key, 'n', 'i'))
  local attempts = cjson.decode(redis.call('HGET', key, 'a') or '[]')
  if type(state[13]) == 'table' then table.insert(attempts, state[13]) end
  for _, attempt in ipairs(attempts) do
    local attempt_id, worker, request = attempt[1], attempt[6], attempt[11]
    spans = spans + redis.call('HLEN', P .. 'spans:' .. attempt_id)
    redis.call('UNLINK', P .. 'spans:' .. attempt_id)
    if type(worker) == 'string' then redis.call('SREM', P .. 'unwanted:' .. worker, attempt_id) end
    if type(request) == 'string' then requests[request] = true end
  end
  if string.sub(input, 1, 1) == '@' then
    local body = P .. 'body:' .. string.sub(input, 2)
    if redis.call('HINCRBY', body, 'u', -1) <= 0 then redis.call('DEL', body) end
  end
  redis.call('ZREM', P .. ARGV[1], id)
  redis.call('ZREM', P .. 'numbers', id)
  redis.call('ZREM', P .. 'rewards', string.format('%015d', number))
  redis.call('HINCRBY', totals, state[1], -1)
  redis.call('HINCRBY', totals, 'attempts', 0 - #attempts)
  redis.call('HINCRBY', totals, 'spans', 0 - spans)
  redis.call('UNLINK', key)
end
for _, id in ipairs(redis.call('ZRANGE', P .. ARGV[1], ARGV[2], ARGV[2] + ARGV[3] - 1)) do
  local key = P .. 'r:' .. id
  local state = cjson.decode(redis.call('HGET', key, 's'))
  if tonumber(state[2]) < tonumber(ARGV[4]) then
    let_go(id, key, state)
    gone = gone + 1
  else
    kept = kept + 1
  end
end
-- Once for each request and not for each of its claims, of which there may be thousands.
local function is_needed(request)
  for _, claim in ipairs(cjson.decode(redis.call('HGET', P .. 'requests', request) or '[]')) do
    if redis.call('EXISTS', P .. 'r:' .. claim[1]) == 1 then return true end
  end
  return false
end
for request in pairs(requests) do
  if not is_needed(request) then redis.call('HDEL', P .. 'requests', request) end
end
return {gone, kept}
"""

# A script that fails in the middle is not undone, so everything that the others do is tried before they ever run:
# a user who lacks a right is refused while there is nothing to lose. Answers with what is not allowed.
TRIAL: Final = """
local key = KEYS[1] .. 'trial'
local missing = {}
for _, words in ipairs({
  'HSET t f 1', 'HSETNX t f 1', 'HINCRBY t f 1', 'HGET t f', 'HMGET t f', 'HLEN t', 'HDEL t f', 'DEL t',
  'ZADD t 1 m', 'ZINCRBY t 1 m', 'ZRANGE t 0 -1', 'ZREM t m', 'UNLINK t', 'SADD t m', 'SREM t m',
  'SMEMBERS t', 'SISMEMBER t m', 'RPUSH t m', 'LLEN t', 'UNLINK t', 'SET t 1 EX 60', 'GET t', 'EXISTS t', 'UNLINK t',
  'TIME', 'PUBLISH work:trial 0', 'PUBLISH finished 0',
}) do
  local command = {}
  for word in string.gmatch(words, '%S+') do table.insert(command, word) end
  if command[1] == 'PUBLISH' then
    command[2], command[3] = KEYS[1] .. command[2], ''
  elseif command[2] == 't' then
    command[2] = key
  end
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then table.insert(missing, command[1] .. ': ' .. answer.err) end
end
return missing
"""

ALL: Final = (ROWS, STATUSES, PAGE, TAKE, REQUEST, WORKER, WAKE, COMMIT, SWEEP, TRIAL)
SHA: Final = {script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest() for script in ALL}
