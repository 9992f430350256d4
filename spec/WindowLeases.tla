---------------------------- MODULE WindowLeases ----------------------------
(***************************************************************************)
(* One grantor lends parts of a limit to holders. A lease ends with its    *)
(* window. The module states why all admissions of a window stay within    *)
(* the limit, for any number of holders and any clocks. The conditions     *)
(* are those of package internal/lease:                                    *)
(*                                                                         *)
(*   C1  a grant is charged before it is sent                              *)
(*   C2  a return is credited once                                         *)
(*   C3  a holder drops its balance when the window ends                   *)
(*   C4  a return counts only in the window it was granted in              *)
(*                                                                         *)
(* C5 (replication of charges) is not part of this module: the grantor     *)
(* does not fail here.                                                     *)
(*                                                                         *)
(* The network keeps every message forever, and an action may read any of  *)
(* them at any time. This covers loss, repetition and reordering.          *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Holders,   \* the names of the holders
  Limit,     \* hits that may be admitted in one window
  Windows,   \* number of windows
  Batch,     \* most hits of one grant
  Requests,  \* most requests that one holder sends
  Bug        \* "none", or what a variant in the folder broken does wrong

VARIABLES
  window,    \* the grantor's window
  charged,   \* hits charged to each window
  records,   \* by holder: the newest request in the grantor's window, and the hits granted
  holders,   \* by holder: its window, hits granted and not returned (have), hits not spent (left),
             \* number of its newest request (seq), and whether the reply is awaited (waiting)
  requests,  \* all requests sent
  grants,    \* all grants sent
  admitted   \* hits admitted in each window

vars == <<window, charged, records, holders, requests, grants, admitted>>

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

RECURSIVE Sum(_, _)
Sum(f, set) == IF set = {} THEN 0 ELSE LET x == CHOOSE x \in set : TRUE IN f[x] + Sum(f, set \ {x})

NoRecord == [seq |-> 0, granted |-> 0]

Init ==
  /\ window = 1
  /\ charged = [w \in 1..Windows |-> 0]
  /\ records = [h \in Holders |-> NoRecord]
  /\ holders = [h \in Holders |-> [window |-> 1, have |-> 0, left |-> 0, seq |-> 0, waiting |-> FALSE]]
  /\ requests = {}
  /\ grants = {}
  /\ admitted = [w \in 1..Windows |-> 0]

-----------------------------------------------------------------------------
(* The holders. *)

\* Enter returns the state of a holder that has entered window w (C3).
Enter(s, w) == [s EXCEPT !.window = w, !.have = 0, !.left = IF Bug = "carryover" THEN @ ELSE 0]

\* By its own clock, a holder may enter a window before or after the grantor does.
HolderTick(h) ==
  /\ holders[h].window < Windows
  /\ holders' = [holders EXCEPT ![h] = Enter(@, @.window + 1)]
  /\ UNCHANGED <<window, charged, records, requests, grants, admitted>>

Spend(h) ==
  /\ holders[h].left > 0
  /\ holders' = [holders EXCEPT ![h].left = @ - 1]
  /\ admitted' = [admitted EXCEPT ![holders[h].window] = @ + 1]
  /\ UNCHANGED <<window, charged, records, requests, grants>>

\* A request contains the total that the holder has, so a lost grant or return is repaired by the
\* next request. It returns the unspent hits or nothing. A new request replaces the previous one.
Send(h) ==
  LET s == holders[h] IN
  \E back \in {0, Min(s.left, s.have)} :  \* left exceeds have only in broken variants
    /\ s.seq < Requests
    /\ holders' = [holders EXCEPT ![h] = [@ EXCEPT !.have = @ - back, !.left = @ - back,
                                                   !.seq = @ + 1, !.waiting = TRUE]]
    /\ requests' = requests \cup
         {[holder |-> h, seq |-> s.seq + 1, window |-> s.window, have |-> s.have - back]}
    /\ UNCHANGED <<window, charged, records, grants, admitted>>

\* Awaited reports whether a holder accepts g: it has at most one request in flight.
Awaited(g) == holders[g.holder].waiting /\ g.seq = holders[g.holder].seq

\* The grantor names the window: a grant of a later window ends the present one.
Accept(g) ==
  LET old == holders[g.holder]
      s   == IF g.window > old.window THEN Enter(old, g.window) ELSE old
  IN
  /\ Awaited(g) \/ Bug = "twooutstanding"
  /\ holders' = [holders EXCEPT ![g.holder] =
       IF g.window < s.window \/ g.total < s.have
       THEN [s EXCEPT !.waiting = FALSE]
       ELSE [s EXCEPT !.waiting = FALSE, !.have = g.total, !.left = @ + g.total - s.have]]
  /\ UNCHANGED <<window, charged, records, requests, grants, admitted>>

-----------------------------------------------------------------------------
(* The grantor. *)

\* The grantor keeps nothing of the previous window, not even the numbers of requests.
GrantorTick ==
  /\ window < Windows
  /\ window' = window + 1
  /\ records' = IF Bug = "nextwindow" THEN records ELSE [h \in Holders |-> NoRecord]
  /\ UNCHANGED <<charged, holders, requests, grants, admitted>>

\* The grantor sets the record to the total in the request, credits the difference (C2, C4), and
\* lends n more. A request of an older window has nothing of the present one.
Lend(m) ==
  LET r        == records[m.holder]
      have     == IF m.window = window THEN m.have ELSE 0
      reported == IF Bug = "nextwindow" THEN m.have ELSE have
      rest     == Max(0, charged[window] + reported - r.granted)
  IN
  /\ m.window <= window
  /\ m.seq > r.seq \/ Bug = "doublereconcile"
  /\ \E n \in 0..Min(Batch, Max(0, Limit - rest)) :
       LET paid == IF Bug = "latecharge" THEN 0 ELSE n  \* otherwise charged with the next request
       IN
       /\ charged' = [charged EXCEPT ![window] = rest + paid]
       /\ records' = [records EXCEPT ![m.holder] = [seq |-> m.seq, granted |-> have + paid]]
       /\ grants' = grants \cup
            {[holder |-> m.holder, seq |-> m.seq, window |-> window, total |-> have + n]}
  /\ UNCHANGED <<window, holders, requests, admitted>>

Next ==
  \/ GrantorTick
  \/ \E h \in Holders : HolderTick(h) \/ Spend(h) \/ Send(h)
  \/ \E m \in requests : Lend(m)
  \/ \E g \in grants : Accept(g)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* The invariants. *)

\* Bound is the promise: no window admits more than the limit.
Bound == \A w \in 1..Windows : admitted[w] <= Limit

\* Most returns the largest number in set, or 0.
Most(set) == CHOOSE x \in set \cup {0} : \A y \in set \cup {0} : y <= x

\* Owed is how many more hits of window w holder h can spend without another grant.
Owed(h, w) ==
  LET s     == holders[h]
      here  == s.window = w
      gains == {g.total - (IF here THEN s.have ELSE 0) :
                 g \in {g \in grants : g.holder = h /\ g.window = w /\ Awaited(g)}}
  IN (IF here THEN s.left ELSE 0) + (IF s.window > w THEN 0 ELSE Most(gains))

\* Covered explains Bound: every hit that was spent or can still be spent is charged.
Covered ==
  \A w \in 1..Windows :
    admitted[w] + Sum([h \in Holders |-> Owed(h, w)], Holders) <= charged[w]

\* Charged states that the grantor does not lend more than the limit.
Charged == \A w \in 1..Windows : charged[w] <= Limit

\* Recorded states that a holder never has more than its grantor has recorded.
Recorded ==
  \A h \in Holders : holders[h].window = window => holders[h].have <= records[h].granted

TypeOK ==
  /\ window \in 1..Windows
  /\ charged \in [1..Windows -> Nat]
  /\ records \in [Holders -> [seq : 0..Requests, granted : Nat]]
  /\ holders \in [Holders -> [window : 1..Windows, have : Nat, left : Nat, seq : 0..Requests, waiting : BOOLEAN]]
  /\ requests \subseteq [holder : Holders, seq : 1..Requests, window : 1..Windows, have : Nat]
  /\ grants \subseteq [holder : Holders, seq : 1..Requests, window : 1..Windows, total : Nat]
  /\ admitted \in [1..Windows -> Nat]

\* View is the part of a state that can still have an effect. TLC counts distinct views.
View ==
  <<window, charged, records, holders, admitted,
    {m \in requests : window < Windows \/ m.seq > records[m.holder].seq},
    {g \in grants : Awaited(g)}>>
=============================================================================
