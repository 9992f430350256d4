//! Matchers of headers, with the meaning of Envoy's HeaderMatcher.

use crate::config::Fields;
use crate::filter::Request;

/// A matcher of one header.
#[derive(Debug, PartialEq)]
pub struct HeaderMatch {
    name: String,
    test: Test,
    invert: bool,
}

#[derive(Debug, PartialEq)]
enum Test {
    Present(bool),
    Text { kind: Kind, text: Vec<u8>, ignore_case: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Exact,
    Prefix,
    Suffix,
    Contains,
}

impl HeaderMatch {
    pub(crate) fn parse(f: &mut Fields) -> Result<HeaderMatch, String> {
        let name = f.text("name")?.to_ascii_lowercase();
        let invert = f.flag("invert_match")?.unwrap_or(false);
        let present = f.flag("present_match")?;
        let test = match (f.object("string_match")?, present) {
            (Some(_), Some(_)) => return f.fault("want one of string_match and present_match"),
            (Some(mut s), None) => {
                let test = text_test(&mut s)?;
                s.end()?;
                test
            }
            (None, present) => Test::Present(present.unwrap_or(true)),
        };
        Ok(HeaderMatch { name, test, invert })
    }

    /// Reports whether a request has a matching header. It is `None` for a text and several headers with the name:
    /// Envoy 1.36 and 1.38 join their values by commas, and 1.40 does not.
    pub fn matches(&self, request: &impl Request) -> Option<bool> {
        let (first, count) = request.header(&self.name, 0);
        let result = match (first, &self.test) {
            (first, Test::Present(want)) => first.is_some() == *want,
            (None, Test::Text { .. }) => return Some(false), // inverted or not
            (Some(_), Test::Text { .. }) if count > 1 => return None,
            (Some(first), test) => test.holds(first),
        };
        Some(result != self.invert)
    }
}

fn text_test(s: &mut Fields) -> Result<Test, String> {
    let ignore_case = s.flag("ignore_case")?.unwrap_or(false);
    for (field, kind) in
        [("exact", Kind::Exact), ("prefix", Kind::Prefix), ("suffix", Kind::Suffix), ("contains", Kind::Contains)]
    {
        if let Some(text) = s.optional_text(field)? {
            let mut text = text.into_bytes();
            if ignore_case {
                text.make_ascii_lowercase();
            }
            return Ok(Test::Text { kind, text, ignore_case });
        }
    }
    s.fault("want exact, prefix, suffix or contains; the module has no safe_regex")
}

impl Test {
    fn holds(&self, value: &[u8]) -> bool {
        let Test::Text { kind, text, ignore_case } = self else { return true };
        let lower;
        let value = if *ignore_case {
            lower = value.to_ascii_lowercase();
            &lower[..]
        } else {
            value
        };
        match kind {
            Kind::Exact => value == text,
            Kind::Prefix => value.starts_with(text),
            Kind::Suffix => value.ends_with(text),
            Kind::Contains => text.is_empty() || value.windows(text.len()).any(|w| w == text),
        }
    }
}
