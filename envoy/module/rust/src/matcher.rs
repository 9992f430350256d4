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

    /// Reports whether a request has a matching header. The values of several headers with the name are joined by commas.
    /// A text never matches an absent header, inverted or not... except as Envoy: inverted, it does not match either.
    pub fn matches(&self, request: &impl Request) -> bool {
        let (first, count) = request.header(&self.name, 0);
        let Some(first) = first else {
            return match self.test {
                Test::Present(want) => self.invert == want,
                Test::Text { .. } => self.invert,
            };
        };
        let result = match &self.test {
            Test::Present(want) => *want,
            test if count <= 1 => test.holds(first),
            test => {
                let mut all = first.to_vec();
                for i in 1..count {
                    all.push(b',');
                    all.extend(request.header(&self.name, i).0.unwrap_or_default());
                }
                test.holds(&all)
            }
        };
        result != self.invert
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
