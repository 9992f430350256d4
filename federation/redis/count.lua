-- Processes one request of mechanism approximate: federation.CountAccount.Grant, in Redis. The numbers 4096, 10 s and 2^52
-- are its constants.
--
-- KEYS: 1 {kwNN}:fed:DIGEST  2 not used
-- The hash {kwNN}:fed:DIGEST:n:WINDOW counts the hits of a window: e, the newest epoch of a request; u, all hits; n, the lives;
-- and for each life of a holder sHOLDER:BOOT, its hits. Times are in microseconds.
-- It returns nil if the request is refused. Otherwise: window, total, used, usable, time left, 0, hits of the window before.

local holder, boot = ARGV[1], ARGV[2]
local epoch, width, sliding, pool = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1', tonumber(ARGV[9])
local window, have, tokens = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[13])
local pastWindow, pastHave = tonumber(ARGV[14]), tonumber(ARGV[15])
local now = tonumber(ARGV[16]) -- only tests set it
local opens, till = tonumber(ARGV[18]), tonumber(ARGV[19]) -- windows that begin then use the layout of epoch

local function text(n) return string.format('%.0f', n) end

if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local begins, ends = window * width, (window + 1) * width
local function key(w) return KEYS[1] .. ':n:' .. text(w) end
local life = 's' .. holder .. ':' .. boot

-- read returns the hits of a life and of all, and the number of lives.
local function read(w)
  local v = redis.call('HMGET', key(w), life, 'u', 'n', 'e')
  return {key = key(w), known = v[1], mine = tonumber(v[1] or '0'), sum = tonumber(v[2] or '0'), lives = tonumber(v[3] or '0'),
    epoch = tonumber(v[4] or '0'), ends = (w + 1) * width}
end

-- raise sets the hits of the life to n, if that is more.
local function raise(r, n)
  n = math.max(n, r.mine)
  r.sum, r.mine = math.min(r.sum + n - r.mine, 4503599627370496), n
end

-- write records r, which was requested with that epoch.
local function write(r, epoch)
  if not r.known then r.lives = r.lives + 1 end
  redis.call('HSET', r.key, life, text(r.mine), 'u', text(r.sum), 'n', text(r.lives), 'e', text(epoch))
  redis.call('PEXPIREAT', r.key, text(math.ceil((sliding and r.ends + width or r.ends) / 1000) + 60000))
end

local current = read(window)
if begins < opens or begins >= till or now >= ends + 10000000 or now < begins - 10000000 or current.epoch > epoch or
  not current.known and current.lives >= 4096 then
  return false
end
local past = {sum = 0}
if sliding or pastWindow == window - 1 then past = read(window - 1) end
if pastWindow == window - 1 then
  raise(past, pastHave)
  write(past, past.epoch) -- the layout may have changed since
end
local usable = pool
if sliding then
  usable = pool - math.min(math.ceil(past.sum * math.min(math.max(0, ends - now), width) / width), pool)
end
raise(current, have)
if have + tokens > current.mine then
  raise(current, current.mine + math.min(have + tokens - current.mine, usable - math.min(current.sum, usable)))
end
write(current, epoch)
return {window, current.mine, current.sum, usable, math.max(0, ends - now), 0, past.sum}
