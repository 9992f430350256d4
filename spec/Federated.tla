------------------------------ MODULE Federated ------------------------------
(***************************************************************************)
(* One limit over several regions. The module is WindowLeases with other   *)
(* names (holder: region, balance: escrow, grantor: coordinator) and four  *)
(* additions:                                                              *)
(*                                                                         *)
(*   - Every region has a floor, a counter of its own that is never lent.  *)
(*     The coordinator lends only the pool; all floors and the pool add up *)
(*     to the limit.                                                       *)
(*   - The regions in Away may be cut off from the coordinator. With       *)
(*     RegionalOnly they may then spend up to their slice of the limit,    *)
(*     less what they have leased.                                         *)
(*   - The coordinator's store may lose its last write.                    *)
(*   - The owner of the key in a region may change. It moves the balance   *)
(*     to the next owner in one message. A crash is a change whose message *)
(*     is lost.                                                            *)
(*                                                                         *)
(* The network keeps every message forever, and an action may read any of  *)
(* them at any time. This covers loss, repetition and reordering.          *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Regions,       \* the regions, 1 to their number
  Limit,         \* hits that may be admitted in one window, in all regions together
  Floored,       \* regions with a floor of one hit; the others have none
  Windows,       \* number of windows
  Batch,         \* most hits of one grant
  Requests,      \* most requests that one region sends
  Away,          \* regions that may be cut off from the coordinator
  RegionalOnly,  \* whether regions that are cut off use the policy regional_only
  LostWrites,    \* most writes that the store loses
  Moves,         \* most owner changes in one region
  Bug            \* "none", or what a variant in the folder broken does wrong

VARIABLES
  window,    \* the coordinator's window
  store,     \* the coordinator's store: hits of the pool charged to each window, and by region the
             \* record of the present window: owner (boot), newest request, hits granted
  before,    \* the store before its last write
  losses,    \* number of writes lost
  regions,   \* by region: its window, hits granted and not returned (have), hits not spent (left),
             \* its owner (boot), whether the owner has taken the moved balance (taken), number of the
             \* newest request (seq), and whether the reply is awaited (waiting)
  floors,    \* by region: hits spent from the floor in each window
  cut,       \* regions that are cut off from the coordinator
  requests,  \* all requests sent
  grants,    \* all grants sent
  moves,     \* all balances sent to a new owner
  spent      \* hits spent from escrow in each window

coordinator == <<window, store, before, losses>>
vars == <<coordinator, regions, floors, cut, requests, grants, moves, spent>>

Count == Cardinality(Regions)

ASSUME Regions = 1..Count

\* Slice is the static share of a region. The first regions get what division leaves over.
Slice(r) == Limit \div Count + IF r <= Limit % Count THEN 1 ELSE 0

Floor(r) == IF r \in Floored THEN 1 ELSE 0

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

RECURSIVE Sum(_, _)
Sum(f, set) == IF set = {} THEN 0 ELSE LET x == CHOOSE x \in set : TRUE IN f[x] + Sum(f, set \ {x})

\* Pool is the number of hits that the coordinator may lend in one window.
Pool == IF Bug = "floorlent" THEN Limit ELSE Limit - Sum([r \in Regions |-> Floor(r)], Regions)

NoRecord == [boot |-> 0, seq |-> 0, granted |-> 0]

Init ==
  /\ window = 1
  /\ store = [charged |-> [w \in 1..Windows |-> 0], records |-> [r \in Regions |-> NoRecord]]
  /\ before = store
  /\ losses = 0
  /\ regions = [r \in Regions |-> [window |-> 1, have |-> 0, left |-> 0, boot |-> 1, taken |-> TRUE,
                                   seq |-> 0, waiting |-> FALSE]]
  /\ floors = [r \in Regions |-> [w \in 1..Windows |-> 0]]
  /\ cut = {}
  /\ requests = {}
  /\ grants = {}
  /\ moves = {}
  /\ spent = [w \in 1..Windows |-> 0]

-----------------------------------------------------------------------------
(* The regions. *)

\* Enter returns the state of a region that has entered window w (C3).
Enter(s, w) == [s EXCEPT !.window = w, !.have = 0, !.left = IF Bug = "carryover" THEN @ ELSE 0]

\* Reach returns the state of a region that has received a message about window w.
Reach(s, w) == IF w > s.window THEN Enter(s, w) ELSE s

\* By its own clock, a region may enter a window before or after the coordinator does.
RegionTick(r) ==
  /\ regions[r].window < Windows
  /\ regions' = [regions EXCEPT ![r] = Enter(@, @.window + 1)]
  /\ UNCHANGED <<coordinator, floors, cut, requests, grants, moves, spent>>

\* FloorLimit is the limit of the floor's counter.
FloorLimit(r) ==
  IF RegionalOnly /\ r \in cut THEN Max(Floor(r), Slice(r) - regions[r].have) ELSE Floor(r)

SpendFloor(r) ==
  LET w == regions[r].window IN
  /\ floors[r][w] < FloorLimit(r)
  /\ floors' = [floors EXCEPT ![r][w] = @ + 1]
  /\ UNCHANGED <<coordinator, regions, cut, requests, grants, moves, spent>>

SpendEscrow(r) ==
  /\ regions[r].left > 0
  /\ regions' = [regions EXCEPT ![r].left = @ - 1]
  /\ spent' = [spent EXCEPT ![regions[r].window] = @ + 1]
  /\ UNCHANGED <<coordinator, floors, cut, requests, grants, moves>>

\* A request contains the total that the owner has, so a lost grant or return is repaired by the next
\* request. It returns the unspent hits that were granted to this owner, or nothing.
Send(r) ==
  LET s == regions[r] IN
  \E back \in {0, Min(s.left, s.have)} :
    /\ s.seq < Requests
    /\ regions' = [regions EXCEPT ![r] = [@ EXCEPT !.have = @ - back, !.left = @ - back,
                                                   !.seq = @ + 1, !.waiting = TRUE]]
    /\ requests' = requests \cup {[region |-> r, boot |-> s.boot, seq |-> s.seq + 1,
                                   window |-> s.window, have |-> s.have - back]}
    /\ UNCHANGED <<coordinator, floors, cut, grants, moves, spent>>

\* Awaited reports whether a region accepts g: it has at most one request in flight.
Awaited(g) == regions[g.region].waiting /\ g.seq = regions[g.region].seq

Accept(g) ==
  LET s == Reach(regions[g.region], g.window) IN
  /\ g.region \notin cut
  /\ Awaited(g) \/ Bug = "twooutstanding"
  /\ regions' = [regions EXCEPT ![g.region] =
       IF g.window < s.window \/ g.total < s.have
       THEN [s EXCEPT !.waiting = FALSE]
       ELSE [s EXCEPT !.waiting = FALSE, !.have = g.total, !.left = @ + g.total - s.have]]
  /\ UNCHANGED <<coordinator, floors, cut, requests, grants, moves, spent>>

\* A planned change of the owner. The floor is an ordinary counter and moves in the usual way. A boot
\* moves its balance once, so the boot identifies the message. Numbers of requests increase across
\* owners.
Move(r) ==
  LET s == regions[r] IN
  /\ s.boot <= Moves
  /\ moves' = moves \cup {[region |-> r, boot |-> s.boot, window |-> s.window, left |-> s.left]}
  /\ regions' = [regions EXCEPT ![r] = [s EXCEPT !.boot = @ + 1, !.taken = FALSE,
                                                 !.have = 0, !.left = 0, !.waiting = FALSE]]
  /\ UNCHANGED <<coordinator, floors, cut, requests, grants, spent>>

\* The next owner takes the balance once. It may spend the hits but not return them: have does not
\* contain them.
Take(m) ==
  LET s == Reach(regions[m.region], m.window) IN
  /\ m.boot + 1 = s.boot
  /\ ~s.taken \/ Bug = "taketwice"
  /\ regions' = [regions EXCEPT ![m.region] =
       [s EXCEPT !.taken = TRUE, !.left = IF m.window = s.window THEN @ + m.left ELSE @]]
  /\ UNCHANGED <<coordinator, floors, cut, requests, grants, moves, spent>>

Cut(r) ==
  /\ cut' = IF r \in cut THEN cut \ {r} ELSE cut \cup {r}
  /\ UNCHANGED <<coordinator, regions, floors, requests, grants, moves, spent>>

-----------------------------------------------------------------------------
(* The coordinator. *)

CoordinatorTick ==
  /\ window < Windows
  /\ window' = window + 1
  /\ store' = [store EXCEPT !.records = IF Bug = "nextwindow" THEN @ ELSE [r \in Regions |-> NoRecord]]
  /\ before' = store'
  /\ UNCHANGED <<losses, regions, floors, cut, requests, grants, moves, spent>>

\* The record of another owner is not credited: that owner may have spent or moved its hits. Late
\* requests of an earlier owner count as those of another owner, whatever their numbers.
RecordOf(m) ==
  LET r == store.records[m.region] IN
  IF r.boot = m.boot THEN r ELSE [seq |-> 0, granted |-> IF Bug = "bootcredit" THEN r.granted ELSE 0]

\* The coordinator sets the record to the total in the request, credits the difference (C2, C4), and
\* lends n more. A total above the record means that a write was lost; the difference is charged.
Lend(m) ==
  LET r        == RecordOf(m)
      have     == IF m.window = window THEN m.have ELSE 0
      reported == IF Bug = "nextwindow" THEN m.have ELSE have
      change   == IF Bug = "norepair" THEN Min(0, reported - r.granted) ELSE reported - r.granted
      rest     == Max(0, store.charged[window] + change)
  IN
  /\ m.region \notin cut
  /\ m.window <= window
  /\ m.seq > r.seq \/ Bug = "doublereconcile"
  /\ \E n \in 0..Min(Batch, Max(0, Pool - rest)) :
       /\ store' = [charged |-> [store.charged EXCEPT ![window] = rest + n],
                    records |-> [store.records EXCEPT ![m.region] =
                                  [boot |-> m.boot, seq |-> m.seq, granted |-> have + n]]]
       /\ grants' = grants \cup
            {[region |-> m.region, seq |-> m.seq, window |-> window, total |-> have + n]}
  /\ before' = store
  /\ UNCHANGED <<window, losses, regions, floors, cut, requests, moves, spent>>

LoseWrite ==
  /\ losses < LostWrites
  /\ store # before
  /\ losses' = losses + 1
  /\ store' = before
  /\ UNCHANGED <<window, before, regions, floors, cut, requests, grants, moves, spent>>

Next ==
  \/ CoordinatorTick
  \/ LoseWrite
  \/ \E r \in Regions : RegionTick(r) \/ SpendFloor(r) \/ SpendEscrow(r) \/ Send(r) \/ Move(r)
  \/ \E r \in Away : Cut(r)
  \/ \E m \in requests : Lend(m)
  \/ \E g \in grants : Accept(g)
  \/ \E m \in moves : Take(m)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* The invariants. *)

Admitted(w) == spent[w] + Sum([r \in Regions |-> floors[r][w]], Regions)

\* Strict is the promise without regional_only and lost writes.
Strict == \A w \in 1..Windows : Admitted(w) <= Limit

\* Overdraft is the most that regional_only may add in one window, Lost the most that lost writes may
\* have added.
Overdraft == IF RegionalOnly THEN Sum([r \in Away |-> Slice(r) - Floor(r)], Away) ELSE 0
Lost      == losses * Batch

\* Bound is the promise under all faults.
Bound == \A w \in 1..Windows : Admitted(w) <= Limit + Overdraft + Lost

\* Most returns the largest number in set, or 0.
Most(set) == CHOOSE x \in set \cup {0} : \A y \in set \cup {0} : y <= x

\* Owed is how many more hits of window w region r can spend from escrow without another grant.
Owed(r, w) ==
  LET s     == regions[r]
      here  == s.window = w
      gains == {g.total - (IF here THEN s.have ELSE 0) :
                 g \in {g \in grants : g.region = r /\ g.window = w /\ Awaited(g)}}
      moved == {m.left : m \in {m \in moves : m.region = r /\ m.window = w /\ m.boot + 1 = s.boot}}
  IN (IF here THEN s.left ELSE 0)
     + (IF s.window > w THEN 0 ELSE Most(gains) + (IF s.taken THEN 0 ELSE Most(moved)))

\* Covered explains Bound: every hit that was spent or can still be spent from escrow is charged.
Covered ==
  \A w \in 1..Windows :
    spent[w] + Sum([r \in Regions |-> Owed(r, w)], Regions) <= store.charged[w] + Lost

\* Repaired states that all hits in records are charged, also after a lost write.
Repaired ==
  Sum([r \in Regions |-> store.records[r].granted], Regions) <= store.charged[window]

Records == [boot : Nat, seq : 0..Requests, granted : Nat]
Stores  == [charged : [1..Windows -> Nat], records : [Regions -> Records]]

TypeOK ==
  /\ window \in 1..Windows
  /\ {store, before} \subseteq Stores
  /\ losses \in 0..LostWrites
  /\ regions \in [Regions -> [window : 1..Windows, have : Nat, left : Nat, boot : 1..Moves + 1, taken : BOOLEAN,
                              seq : 0..Requests, waiting : BOOLEAN]]
  /\ floors \in [Regions -> [1..Windows -> Nat]]
  /\ cut \subseteq Away
  /\ requests \subseteq [region : Regions, boot : 1..Moves + 1, seq : 1..Requests, window : 1..Windows, have : Nat]
  /\ grants \subseteq [region : Regions, seq : 1..Requests, window : 1..Windows, total : Nat]
  /\ moves \subseteq [region : Regions, boot : 1..Moves, window : 1..Windows, left : Nat]
  /\ spent \in [1..Windows -> Nat]

\* Useful reports whether the coordinator may still process m.
Useful(m) == window < Windows \/ losses < LostWrites \/ Moves > 0 \/ m.seq > store.records[m.region].seq

\* View is the part of a state that can still have an effect. TLC counts distinct views.
View ==
  <<window, store, IF losses < LostWrites THEN before ELSE <<>>, losses, regions, floors, cut, spent,
    {m \in requests : Useful(m)},
    {g \in grants : Awaited(g)},
    {m \in moves : m.boot + 1 = regions[m.region].boot /\ ~regions[m.region].taken}>>
=============================================================================
