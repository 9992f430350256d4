-- Processes one request of a region: federation.PoolAccount.Grant, in Redis. The numbers 256, 10 s and 2^52 are its constants.
--
-- KEYS: 1 {kwNN}:fed:DIGEST  2 {kwNN}:since, the time of the first write of the dataset
-- The hash {kwNN}:fed:DIGEST:WINDOW holds what is lent of a window: e, the newest epoch of a request; u, the charged hits;
-- and for each region lREGION, the text "boot seq have left asked note", and rREGION, the silence after which its left is
-- credited. Times are in microseconds.
-- It returns nil if the request is refused. Otherwise: window, total, used, usable, time left, hits that were charged
-- because their record was lost; and then region, have, left, age and note of each other region.

local region, boot, seq, note, name = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local epoch, width, sliding, pool = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1', tonumber(ARGV[9])
local window, have, left, tokens = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local pastWindow, pastHave = tonumber(ARGV[14]), tonumber(ARGV[15])
local now = tonumber(ARGV[16]) -- only tests set it
local reclaim = tonumber(ARGV[17])
local opens, till = tonumber(ARGV[18]), tonumber(ARGV[19]) -- windows that begin then use the layout of epoch

-- text returns n as decimal text. Lua itself would write 1e+15.
local function text(n) return string.format('%.0f', n) end

-- A line records what a region has of a window. boot and seq are text of 20 digits: numbers of Lua end at 2^53.
local function parse(value)
  local boot, seq, have, left, asked, note = string.match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  return {boot = boot, seq = seq, have = tonumber(have), left = tonumber(left), asked = tonumber(asked), note = note}
end

local function format(l)
  return table.concat({l.boot, l.seq, text(l.have), text(l.left), text(l.asked), l.note}, ' ')
end

if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local w = math.floor(now / width)
local begins, ends = w * width, (w + 1) * width
local function key(w) return KEYS[1] .. ':' .. text(w) end
local current, past = key(w), key(w - 1)

-- Read.
local fields, lines, silence, count = {}, {}, {}, 0
local flat = redis.call('HGETALL', current)
for i = 1, #flat, 2 do
  if string.sub(flat[i], 1, 1) == 'l' then
    lines[string.sub(flat[i], 2)] = parse(flat[i + 1])
    count = count + 1
  elseif string.sub(flat[i], 1, 1) == 'r' then
    silence[string.sub(flat[i], 2)] = tonumber(flat[i + 1])
  else
    fields[flat[i]] = tonumber(flat[i + 1])
  end
end

-- Refuse.
local l = lines[region]
if begins < opens or begins >= till or window > w or redis.call('EXISTS', key(w + 1)) == 1 or (fields.e or 0) > epoch then
  return false
elseif not l then
  if count >= 256 then return false end
  l = {boot = boot, have = 0, left = 0}
elseif seq <= l.seq and (boot == l.boot or now - l.asked < 10000000) then
  return false
end

-- Charge what the region has, and credit what it has returned or never got.
local counter = name ~= '' and name .. text(begins / 1000000)
local before = fields.u or 0
if counter then before = tonumber(redis.call('GET', counter) or '0') end
if window ~= w then have, left = 0, 0 end
local was = l.boot == boot and l.have or 0
local used = before
if l.boot ~= boot and silence[region] then used = used - math.min(used, l.left) end -- that life has ended
used = math.min(used - math.min(used, was) + have, 4503599627370496)
local lost = math.max(0, have - was)

-- Credit what holders that have been silent for too long had not spent.
for r, o in pairs(lines) do
  if r ~= region and silence[r] and o.left > 0 and now - o.asked >= silence[r] + 1000000 then
    used = used - math.min(used, o.left)
    o.have, o.left = o.have - o.left, 0
    redis.call('HSET', current, 'l' .. r, format(o))
  end
end

-- Credit what it has not spent of the window before.
local pastUsed = 0
if sliding then
  local value = redis.call('HMGET', past, 'u', 'l' .. region)
  pastUsed = tonumber(value[1] or '0')
  local p = pastWindow == w - 1 and value[2] and parse(value[2])
  if p and p.boot == boot and pastHave < p.have then
    pastUsed = pastUsed - math.min(pastUsed, p.have - pastHave)
    p.have = pastHave
    redis.call('HSET', past, 'u', text(pastUsed), 'l' .. region, format(p))
  end
end

-- Lend.
local recorded = redis.call('GET', KEYS[2])
local since = tonumber(recorded or text(now))
if counter then since = 0 end -- as for envoyproxy/ratelimit, what Redis does not count was not admitted
local usable = pool
if since >= ends then
  usable = 0
elseif since > begins then
  usable = math.floor(pool * (ends - since) / width)
end
usable = usable - math.min(math.ceil(pastUsed * (ends - now) / width), usable)
local n = math.min(tokens, usable - math.min(used, usable))
used, have, left = used + n, have + n, left + n

-- Write.
if not recorded then redis.call('SET', KEYS[2], text(since)) end
local line = format({boot = boot, seq = seq, have = have, left = left, asked = now, note = note})
redis.call('HSET', current, 'e', text(epoch), 'u', text(used), 'l' .. region, line)
if reclaim > 0 then
  redis.call('HSET', current, 'r' .. region, text(reclaim))
elseif silence[region] then
  redis.call('HDEL', current, 'r' .. region)
end
redis.call('PEXPIREAT', current, text(math.ceil((sliding and ends + width or ends) / 1000) + 60000))
if counter and used ~= before then -- as envoyproxy/ratelimit does
  redis.call(used > before and 'INCRBY' or 'DECRBY', counter, text(math.abs(used - before)))
  redis.call('EXPIRE', counter, text(width / 1000000))
end

local reply = {w, have, used, usable, ends - now, lost}
for r, o in pairs(lines) do
  if r ~= region then
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3] = r, o.have, o.left
    reply[at + 4], reply[at + 5] = math.max(0, now - o.asked), o.note
  end
end
return reply
