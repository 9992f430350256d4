//! Runs the module and the sidecar against one segment in every order of their accesses.

mod common;

use common::*;
use keyward::lease::{Leases, Take, Word};
use std::cell::Cell as LocalCell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};

/// Lets one of two threads make its next access.
#[derive(Default)]
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: [bool; 2],
    ended: [bool; 2],
    granted: Option<usize>,
}

thread_local! {
    static THREAD: LocalCell<Option<usize>> = const { LocalCell::new(None) };
}

impl Turns {
    /// Waits until this thread may make an access.
    fn step(&self) {
        let Some(me) = THREAD.get() else { return }; // the test itself
        let mut s = self.state.lock().unwrap();
        s.waiting[me] = true;
        self.changed.notify_all();
        while s.granted != Some(me) {
            s = self.changed.wait(s).unwrap();
        }
        s.granted = None;
        s.waiting[me] = false;
    }

    fn end(&self, me: usize) {
        self.state.lock().unwrap().ended[me] = true;
        self.changed.notify_all();
    }

    /// Grants accesses in the order of `choices`, then the first thread's first. It extends `choices` by those that it
    /// made where both threads could go on.
    fn schedule(&self, choices: &mut Vec<usize>) {
        let mut made = 0;
        loop {
            let mut s = self.state.lock().unwrap();
            while s.granted.is_some() || (0..2).any(|i| !s.waiting[i] && !s.ended[i]) {
                s = self.changed.wait(s).unwrap();
            }
            let next = match (s.ended[0], s.ended[1]) {
                (true, true) => return,
                (true, false) => 1,
                (false, true) => 0,
                (false, false) => {
                    if made == choices.len() {
                        choices.push(0);
                    }
                    made += 1;
                    choices[made - 1]
                }
            };
            s.granted = Some(next);
            self.changed.notify_all();
        }
    }
}

/// A word whose accesses wait for their turn.
struct Cell<'a> {
    value: AtomicU64,
    turns: &'a Turns,
}

impl Cell<'_> {
    fn swap(&self, v: u64) -> u64 {
        self.turns.step();
        self.value.swap(v, SeqCst)
    }
    fn get(&self) -> u64 {
        self.value.load(SeqCst)
    }
}

impl Word for Cell<'_> {
    fn load(&self) -> u64 {
        self.turns.step();
        self.value.load(SeqCst)
    }
    fn exchange(&self, old: u64, new: u64) -> bool {
        self.turns.step();
        self.value.compare_exchange(old, new, SeqCst, SeqCst).is_ok()
    }
    fn add(&self, n: u64) {
        self.value.fetch_add(n, SeqCst);
    }
}

const A: &[u8] = b"a";
const B: &[u8] = b"b";

/// Runs two parties in every order. `check` sees their results and the words.
fn every_order<R: Send, S: Send>(
    tokens: u64,
    first: impl Fn(&[Cell]) -> R + Sync,
    second: impl Fn(&[Cell]) -> S + Sync,
    check: impl Fn(R, S, &[Cell]),
) -> u64 {
    let (mut choices, mut orders) = (Vec::new(), 0);
    loop {
        let turns = Turns::default();
        let words: Vec<Cell> = segment().into_iter().map(|value| Cell { value, turns: &turns }).collect();
        lend(&words, print(A), 1, tokens);
        let (r, s) = std::thread::scope(|scope| {
            let (turns, words) = (&turns, &words[..]);
            let (first, second) = (&first, &second);
            let a = scope.spawn(move || party(turns, 0, || first(words)));
            let b = scope.spawn(move || party(turns, 1, || second(words)));
            turns.schedule(&mut choices);
            (a.join().unwrap(), b.join().unwrap())
        });
        check(r, s, &words);
        orders += 1;
        while choices.last() == Some(&1) {
            choices.pop();
        }
        match choices.last_mut() {
            None => return orders,
            Some(last) => *last = 1,
        }
    }
}

fn party<R>(turns: &Turns, me: usize, run: impl FnOnce() -> R) -> R {
    THREAD.set(Some(me));
    let r = run();
    turns.end(me);
    r
}

fn lend(words: &[Cell], of: keyward::fingerprint::Fingerprint, epoch: u64, tokens: u64) {
    let at = place(print(A), 0); // B uses the slot of A
    words[at].swap(of.lo);
    words[at + 1].swap(of.hi);
    words[at + 3].swap(NOW + 1);
    words[at + 2].swap(epoch << 32 | tokens);
}

fn take(words: &[Cell]) -> u64 {
    let leases = Leases::new(words, HEADER).unwrap();
    u64::from(matches!(leases.take(print(A), 1, NOW), Take::Taken(_)))
}

fn take_and_give_back(words: &[Cell]) -> u64 {
    let leases = Leases::new(words, HEADER).unwrap();
    match leases.take(print(A), 1, NOW) {
        Take::Taken(receipt) => {
            leases.give_back(receipt, 1);
            1
        }
        _ => 0,
    }
}

const AT: fn() -> usize = || place(print(A), 0) + 2;
const REST: u64 = u32::MAX as u64;

/// Two workers take the last token: one gets it.
#[test]
fn two_workers() {
    let orders = every_order(1, take, take, |a, b, words| {
        assert_eq!(a + b, 1);
        assert_eq!(words[AT()].get(), 1 << 32);
    });
    assert!(orders > 1000, "{orders}");
}

/// The sidecar replaces the lease while a worker takes a token: what is left in both adds up.
#[test]
fn replaced() {
    every_order(
        1,
        take,
        |words| words[AT()].swap(2 << 32 | 5) & REST,
        |taken, unspent, words| {
            assert_eq!(taken + unspent + (words[AT()].get() & REST), 6);
            assert_eq!(words[AT()].get() >> 32, 2);
        },
    );
}

/// A worker takes a token and gives it back while the sidecar replaces the lease: no token appears, and a lost one
/// remains charged.
#[test]
fn given_back_while_replaced() {
    every_order(
        1,
        take_and_give_back,
        |words| words[AT()].swap(2 << 32 | 5) & REST,
        |taken, unspent, words| {
            let left = unspent + (words[AT()].get() & REST);
            assert!(left == 6 || left == 5 && taken == 1, "{left}");
        },
    );
}

/// The sidecar gives the slot to another key while a worker takes a token: none of the other key's is taken.
#[test]
fn reused() {
    let reuse = |words: &[Cell]| {
        let unspent = words[AT()].swap(2 << 32) & REST;
        lend(words, print(B), 3, 5);
        unspent
    };
    every_order(2, take, reuse, |taken, unspent, words| {
        assert_eq!(taken + unspent, 2);
        assert_eq!(words[AT()].get(), 3 << 32 | 5);
    });
    every_order(2, take_and_give_back, reuse, |taken, unspent, words| {
        assert!(unspent == 2 || unspent == 1 && taken == 1);
        assert_eq!(words[AT()].get(), 3 << 32 | 5);
    });
}

/// The test finds the mistake that the order of the sidecar's writes prevents: a slot whose word has tokens before its
/// fingerprint is the new one.
#[test]
#[should_panic(expected = "taken from the other key")]
fn finds_a_wrong_order() {
    let wrong = |words: &[Cell]| {
        let at = AT();
        words[at].swap(2 << 32 | 5);
        words[at - 2].swap(print(B).lo);
        words[at - 1].swap(print(B).hi);
    };
    every_order(2, take, wrong, |_, (), words| {
        assert_eq!(words[AT()].get(), 2 << 32 | 5, "taken from the other key");
    });
}
