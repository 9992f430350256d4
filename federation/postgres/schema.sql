-- The schema of package postgres, version 2: version 1 had a function keyward_grant_1 without p_opens and p_until. It can be executed again. Times are microseconds since the Unix epoch, by
-- the clock of the server.

-- When the records of a federation begin.
create table if not exists keyward_since (
  fed   text primary key,
  since bigint not null
);

-- What is lent of the present window of a key. Its row lock guards all rows of the key.
create table if not exists keyward_window (
  fed   text collate "C" not null,
  key   uuid   not null,
  win   bigint not null, -- index of the window
  epoch bigint not null, -- the newest one of a request
  used  bigint not null, -- charged hits
  past  bigint not null, -- charged hits of the window before, if it weighs
  ends  timestamptz not null, -- when nothing needs the row any more
  primary key (fed, key)
) with (fillfactor = 50);
create index if not exists keyward_window_ends on keyward_window (ends);

-- What a region has of a window.
create table if not exists keyward_line (
  fed     text collate "C" not null,
  key     uuid   not null,
  win     bigint not null,
  region  text collate "C" not null,
  boot    numeric(20) not null, -- bigint has no 64 bits without a sign
  seq     numeric(20) not null, -- of the newest request
  have    bigint not null, -- hits that boot has
  unspent bigint not null, -- the part of them that may be unspent
  asked   bigint not null, -- time of the newest request
  note    bytea  not null,
  primary key (fed, key, win, region)
) with (fillfactor = 50);

-- Processes one request of a region: federation.PoolAccount.Grant. The numbers 256, 10 s and 2^52 are its constants. It
-- returns no row if the request is refused. lost is the number of hits that were charged because their record was lost.
create or replace function keyward_grant_2(
  p_fed text, p_key uuid, p_region text, p_epoch bigint, p_width bigint, p_sliding boolean, p_pool bigint,
  p_boot numeric, p_seq numeric, p_win bigint, p_have bigint, p_unspent bigint, p_tokens bigint,
  p_past_win bigint, p_past_have bigint, p_note bytea,
  p_opens bigint, p_until bigint, -- windows that begin then use the layout of p_epoch
  p_now bigint, -- null outside of tests
  out win bigint, out total bigint, out used bigint, out usable bigint, out remaining bigint, out lost bigint,
  out regions text[], out granted bigint[], out unspent bigint[], out ages bigint[], out notes bytea[]
) returns setof record language plpgsql as $$
#variable_conflict use_column
declare
  k      keyward_window;
  l      keyward_line;
  p      keyward_line;
  time   bigint := p_now;
  w      bigint;
  starts bigint;
  stops  bigint;
  origin bigint;
  was    bigint := 0;
  n      bigint;
begin
  -- Lock, then read the clock: the times of a key's requests are in the order in which they are processed.
  loop
    select * into k from keyward_window where fed = p_fed and key = p_key for update;
    exit when found;
    insert into keyward_window values (p_fed, p_key, 0, 0, 0, 0, clock_timestamp()) on conflict do nothing;
  end loop;
  if time is null then
    time := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
  end if;
  w := time / p_width;
  starts := w * p_width;
  stops := starts + p_width;
  select since into strict origin from keyward_since where fed = p_fed;

  -- Refuse.
  if starts < p_opens or starts >= p_until or p_win > w or w < k.win or w = k.win and k.epoch > p_epoch then
    return;
  end if;
  select * into l from keyward_line where fed = p_fed and key = p_key and win = w and region = p_region;
  if found then
    if p_seq <= l.seq and (p_boot = l.boot or time - l.asked < 10000000) then
      return;
    end if;
    if l.boot = p_boot then
      was := l.have;
    end if;
  elsif (select count(*) from keyward_line where fed = p_fed and key = p_key and win = w) >= 256 then
    return;
  end if;

  -- Begin the window.
  if w > k.win then
    k.past := case when p_sliding and w = k.win + 1 then k.used else 0 end;
    k.used := 0;
    delete from keyward_line where fed = p_fed and key = p_key and win < w - (case when p_sliding then 1 else 0 end);
  end if;

  -- Charge what the region has, and credit what it has returned or never got.
  if p_win <> w then
    p_have := 0;
    p_unspent := 0;
  end if;
  k.used := least(k.used - least(k.used, was) + p_have, 4503599627370496);
  lost := greatest(0, p_have - was);

  -- Credit what it has not spent of the window before.
  if p_sliding and p_past_win = w - 1 then
    select * into p from keyward_line where fed = p_fed and key = p_key and win = w - 1 and region = p_region;
    if found and p.boot = p_boot and p_past_have < p.have then
      k.past := k.past - least(k.past, p.have - p_past_have);
      update keyward_line set have = p_past_have
        where fed = p_fed and key = p_key and win = w - 1 and region = p_region;
    end if;
  end if;

  -- Lend.
  usable := case when origin <= starts then p_pool when origin >= stops then 0
    else floor(p_pool::float8 * (stops - origin)::float8 / p_width::float8)::bigint end;
  usable := usable - least(usable, ceil(k.past::float8 * (stops - time)::float8 / p_width::float8)::bigint);
  n := least(p_tokens, usable - least(k.used, usable));
  k.used := k.used + n;
  total := p_have + n;

  -- Write.
  insert into keyward_line values (p_fed, p_key, w, p_region, p_boot, p_seq, total, p_unspent + n, time, p_note)
    on conflict (fed, key, win, region) do update set boot = excluded.boot, seq = excluded.seq, have = excluded.have,
      unspent = excluded.unspent, asked = excluded.asked, note = excluded.note;
  update keyward_window set win = w, epoch = p_epoch, used = k.used, past = k.past,
      ends = to_timestamp((stops + case when p_sliding then p_width else 0 end) / 1000000.0)
    where fed = p_fed and key = p_key;

  win := w;
  used := k.used;
  remaining := stops - time;
  select array_agg(o.region order by o.region), array_agg(o.have order by o.region),
      array_agg(o.unspent order by o.region), array_agg(greatest(0, time - o.asked) order by o.region),
      array_agg(o.note order by o.region)
    into regions, granted, unspent, ages, notes
    from keyward_line o where o.fed = p_fed and o.key = p_key and o.win = w and o.region <> p_region;
  return next;
end
$$;
