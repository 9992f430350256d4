//! Segments with random bytes, and random requests: nothing panics, and nothing is admitted that no word has offered.
//! KEYWARD_SEGMENTS and KEYWARD_REQUESTS set how many.

mod common;

use common::*;
use keyward::config::Config;
use keyward::filter;
use keyward::lease::{Header, Leases, Take, LONGEST};
use keyward::message;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Fills a segment with random words, of which many look like leases of the key.
fn scramble(random: &mut Random, words: &[AtomicU64], of: keyward::fingerprint::Fingerprint) {
    for w in words {
        w.store(random.next(), Relaxed);
    }
    for n in 0..8 {
        let at = place(of, n);
        if random.below(4) > 0 {
            words[at].store(of.lo, Relaxed);
        }
        if random.below(4) > 0 {
            words[at + 1].store(of.hi, Relaxed);
        }
        match random.below(6) {
            0 => words[at + 2].store(random.next() << 32, Relaxed),
            1 => words[at + 2].store(u64::MAX, Relaxed),
            _ => {}
        }
        let expires = *random.pick(&[0, NOW, NOW + 1, NOW + LONGEST, NOW + LONGEST + 1, u64::MAX]);
        words[at + 3].store(expires, Relaxed);
    }
}

/// A take from a segment that does not change succeeds only if the slot passes each check, and changes that word alone.
#[test]
fn corrupt_segments() {
    let mut random = Random(1);
    let words = segment();
    let (mut taken, mut corrupt) = (0, 0);
    for i in 0..repetitions("KEYWARD_SEGMENTS", 20_000) {
        let of = print(&i.to_le_bytes());
        scramble(&mut random, &words, of);
        assert_eq!(Header::read(&words, SLOTS), None);
        let slots = random.next() as u32;
        assert_eq!(Header::read(&words, slots), None);
        let before: Vec<u64> = words.iter().map(|w| w.load(Relaxed)).collect();
        let n = *random.pick(&[1, 2, u32::MAX]);
        let leases = Leases::new(&words, HEADER).unwrap();
        let got = leases.take(of, n, NOW);
        let slot = (0..8).map(|n| place(of, n)).find(|&at| before[at] == of.lo && before[at + 1] == of.hi);
        let want = match slot.map(|at| (before[at + 2] as u32, before[at + 3])) {
            None => "Missing",
            Some((rest, _)) if rest < n => "Empty",
            Some((_, expires)) if expires <= NOW => "Empty",
            Some((_, expires)) if expires - NOW > LONGEST => "Corrupt",
            Some(_) => "Taken",
        };
        assert!(format!("{got:?}").starts_with(want), "{got:?}, not {want}");
        for (j, w) in words.iter().enumerate() {
            let spent = if want == "Taken" && Some(j) == slot.map(|at| at + 2) { u64::from(n) } else { 0 };
            assert_eq!(w.load(Relaxed), before[j] - spent, "word {j}");
        }
        if let Take::Taken(receipt) = got {
            leases.give_back(receipt, n);
            assert!(words.iter().zip(&before).all(|(w, b)| w.load(Relaxed) == *b));
        }
        taken += u64::from(want == "Taken");
        corrupt += u64::from(want == "Corrupt");
    }
    assert!(taken > 1000 && corrupt > 1000, "{taken} taken, {corrupt} corrupt: the segments are not as intended");
}

/// The same while another thread writes: nothing panics, and each take returns.
#[test]
fn segments_that_another_thread_corrupts() {
    let words = segment();
    let of = print(b"v");
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut random = Random(2);
            while !stop.load(Relaxed) {
                scramble(&mut random, &words, of);
            }
        });
        let leases = Leases::new(&words, HEADER).unwrap();
        let (mut taken, mut not) = (0u64, 0u64);
        for i in 0..repetitions("KEYWARD_SEGMENTS", 20_000) * 10 {
            match leases.take(of, 1 + (i % 3) as u32, NOW) {
                Take::Taken(receipt) => {
                    taken += 1;
                    leases.give_back(receipt, 1);
                }
                _ => not += 1,
            }
            let _ = Header::read(&words, SLOTS);
        }
        stop.store(true, Relaxed);
        assert!(taken > 0 && not > 0, "{taken} taken, {not} not");
    });
}

const ACTIONS: [&str; 14] = [
    r#"{"request_headers":{"header_name":"a","descriptor_key":"k"}}"#,
    r#"{"request_headers":{"header_name":"b","descriptor_key":"l","skip_if_absent":true}}"#,
    r#"{"query_parameters":{"query_parameter_name":"q","descriptor_key":"q"}}"#,
    r#"{"query_parameters":{"query_parameter_name":"q%","descriptor_key":"q","skip_if_absent":true}}"#,
    r#"{"generic_key":{"descriptor_value":"v"}}"#,
    r#"{"remote_address":{}}"#,
    r#"{"masked_remote_address":{}}"#,
    r#"{"masked_remote_address":{"v4_prefix_mask_len":0,"v6_prefix_mask_len":0}}"#,
    r#"{"masked_remote_address":{"v4_prefix_mask_len":9,"v6_prefix_mask_len":65}}"#,
    r#"{"header_value_match":{"descriptor_value":"v","headers":[{"name":"a","string_match":{"exact":"x"}}]}}"#,
    r#"{"header_value_match":{"descriptor_value":"v","headers":[{"name":"a","present_match":true}],"expect_match":false}}"#,
    r#"{"header_value_match":{"descriptor_value":"v","headers":[{"name":"b","string_match":{"contains":"","ignore_case":true},"invert_match":true}]}}"#,
    r#"{"header_value_match":{"descriptor_value":"v","headers":[{"name":"a","string_match":{"suffix":"Z"}},{"name":"b"}]}}"#,
    r#"{"metadata":{}}"#,
];

const ADDENDS: [&str; 6] = [
    "",
    "",
    r#","hits_addend":{"number":2}"#,
    r#","hits_addend":{"number":0}"#,
    r#","hits_addend":{"format":"%REQ(a)%"}"#,
    r#","hits_addend":{"format":"%REQ(c)%"}"#,
];

fn config(random: &mut Random) -> Option<Config> {
    let limits: Vec<String> = (0..1 + random.below(3))
        .map(|_| {
            let actions: Vec<&str> = (0..1 + random.below(4)).map(|_| *random.pick(&ACTIONS)).collect();
            format!(r#"{{"actions":[{}]{}}}"#, actions.join(","), *random.pick(&ADDENDS))
        })
        .collect();
    let mut text = format!(r#"{{"socket":"/s","domain":"app","limits":[{}]}}"#, limits.join(",")).into_bytes();
    if random.below(4) == 0 {
        let at = random.below(text.len());
        text[at] = random.next() as u8;
    }
    Config::parse(&text).ok()
}

fn request(random: &mut Random) -> Fake {
    let texts: [&[u8]; 15] = [
        b"",
        b"7",
        b"0",
        b"99999999999",
        b"x",
        b"Z",
        b"\xff\xfe",
        b"xZ",
        b"/?q=1&q=2",
        b"/?q%25=%",
        b"/?%71=%4",
        b"?",
        b"a=%zz&&==",
        &[b'l'; 70_000],
        "ü".as_bytes(),
    ];
    let addresses: [&[u8]; 10] =
        [b"1.2.3.4:5", b"[::1]:80", b"[fe80::1%eth0]:1", b":", b"", b"@/path", b"1.2.3.4", b"::1:2", b"[", b"[]:\xff"];
    let names = ["a", "b", ":path", "c"];
    Fake {
        headers: (0..random.below(5))
            .map(|_| ((*random.pick(&names)).to_owned(), random.pick(&texts).to_vec()))
            .collect(),
        address: (random.below(8) > 0).then(|| random.pick(&addresses).to_vec()),
    }
}

/// Random configurations, requests and segments: nothing panics, and a request is admitted only against leases.
#[test]
fn random_requests() {
    let mut random = Random(3);
    let words = segment();
    let (mut admitted, mut left, mut refused) = (0u64, 0u64, 0u64);
    let total = repetitions("KEYWARD_REQUESTS", 100_000);
    while admitted + left < total {
        let Some(config) = config(&mut random) else {
            refused += 1;
            continue;
        };
        let leases = Leases::new(&words, HEADER).unwrap();
        for _ in 0..20 {
            let request = request(&mut random);
            let mut asked = None;
            let charge = filter::take(&config, &request, &leases, NOW, |p, d, hits| {
                asked = Some(p);
                let _ = message::interest(b"app", d.entries(), hits);
            });
            match (charge, asked) {
                (Some(_), None) => admitted += 1,
                (Some(_), Some(_)) => panic!("admitted without a lease"),
                (None, Some(p)) => {
                    left += 1;
                    if random.below(3) > 0 {
                        scramble(&mut random, &words, p); // perhaps a lease for the next request
                    }
                }
                (None, None) => left += 1,
            }
        }
        let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.next() as u8).collect();
        let _ = (message::segment(&bytes), Config::parse(&bytes));
    }
    assert!(
        admitted > total / 100 && refused > 0,
        "{admitted} admitted, {left} left, {refused} configurations refused"
    );
}
