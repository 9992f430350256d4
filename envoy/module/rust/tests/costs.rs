//! Requests that take several hits.

mod common;

use common::*;
use keyward::config::Config;
use keyward::filter;
use keyward::lease::Leases;
use std::sync::atomic::Ordering::Relaxed;

fn config(addends: [&str; 2]) -> Config {
    let limit = |header: &str, addend: &str| {
        format!(r#"{{"actions":[{{"request_headers":{{"header_name":"{header}","descriptor_key":"k"}}}}]{addend}}}"#)
    };
    let limits = format!("{},{}", limit("a", addends[0]), limit("b", addends[1]));
    Config::parse(format!(r#"{{"socket":"/s","domain":"app","limits":[{limits}]}}"#).as_bytes()).unwrap()
}

/// Returns what is left of leases with 10 and 5 hits after a request, whether it was admitted, and the hits of the
/// descriptor that the module asks a lease for; 0: none.
fn take(addends: [&str; 2], headers: &[(&str, &str)]) -> (u64, u64, bool, u32) {
    let words = segment();
    for (value, hits) in [(b"a", 10), (b"b", 5)] {
        let (of, at) = (print(value), place(print(value), 0));
        words[at].store(of.lo, Relaxed);
        words[at + 1].store(of.hi, Relaxed);
        words[at + 2].store(7 << 32 | hits, Relaxed);
        words[at + 3].store(NOW + 1, Relaxed);
    }
    let all = [("a", "a"), ("b", "b")].iter().chain(headers);
    let request =
        Fake { headers: all.map(|(n, v)| ((*n).to_owned(), v.as_bytes().to_vec())).collect(), ..Fake::default() };
    let (config, mut asked) = (config(addends), 0);
    let leases = Leases::new(&words, HEADER).unwrap();
    let charge = filter::take(&config, &request, &leases, NOW, |_, _, hits| asked = hits);
    let left = |value| words[place(print(value), 0) + 2].load(Relaxed) - (7 << 32);
    let result = (left(b"a"), left(b"b"), charge.is_some(), asked);
    if let Some(charge) = charge {
        assert_eq!(words[11].load(Relaxed), 10 + 5 - result.0 - result.1, "the counter of hits");
        charge.give_back(&leases);
        assert_eq!((left(b"a"), left(b"b")), (10, 5), "given back");
    }
    result
}

const THREE: &str = r#","hits_addend":{"number":3}"#;
const HEADER_COST: &str = r#","hits_addend":{"format":"%REQ(Cost)%"}"#;

#[test]
fn numbers() {
    assert_eq!(take(["", ""], &[]), (9, 4, true, 0));
    assert_eq!(take([THREE, ""], &[]), (7, 4, true, 0));
    assert_eq!(take([THREE, THREE], &[]), (7, 2, true, 0));
    let six = r#","hits_addend":{"number":6}"#;
    assert_eq!(take([six, ""], &[]), (4, 4, true, 0));
    assert_eq!(take([six, six], &[]), (10, 5, false, 6), "the second lease has 5");
    assert_eq!(take([r#","hits_addend":{"number":0}"#, ""], &[]), (10, 5, false, 0), "no hits are a call");
}

/// Of a header, the module takes only a number of digits that the rate limit filter must read as the same one. Anything
/// else is left to that filter.
#[test]
fn headers() {
    for (value, hits) in [("1", 1), ("5", 5), ("10", 10), ("010", 10), ("0000000001", 1)] {
        assert_eq!(take([HEADER_COST, ""], &[("cost", value)]), (10 - hits, 4, true, 0), "{value}");
    }
    assert_eq!(take([HEADER_COST, ""], &[("cost", "11")]), (10, 5, false, 11));
    assert_eq!(take([HEADER_COST, ""], &[("cost", "1000000000")]), (10, 5, false, 1_000_000_000));
    for value in [
        "",
        "0",
        "-1",
        "+1",
        "1.0",
        "1e1",
        " 1",
        "1 ",
        "0x1",
        "1,1",
        "x",
        "1000000001",
        "4294967297",
        "00000000001",
        "\u{661}",
    ] {
        assert_eq!(take([HEADER_COST, ""], &[("cost", value)]), (10, 5, false, 0), "{value:?}");
    }
    assert_eq!(take([HEADER_COST, ""], &[]), (10, 5, false, 0), "no header");
    assert_eq!(take([HEADER_COST, ""], &[("cost", "1"), ("cost", "1")]), (10, 5, false, 0), "two headers");
}
