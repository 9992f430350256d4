//! The filter's configuration: JSON with the action names of Envoy's `rate_limits`.

use crate::matcher::HeaderMatch;
use serde_json::{Map, Value};

/// The configuration of a filter.
#[derive(Debug, PartialEq)]
pub struct Config {
    /// Path of the sidecar's socket.
    pub socket: String,
    /// Id of this Envoy, for the sidecar's logs. It may be empty.
    pub node: String,
    /// Domain of the rate limit filter that follows.
    pub domain: String,
    /// Name of the object in Envoy's filter state that marks a request whose leases were taken.
    pub state: String,
    /// Descriptors of the rate limit filter, all of them.
    pub limits: Vec<Limit>,
}

/// How a descriptor is made.
#[derive(Debug, PartialEq)]
pub struct Limit {
    /// Makes the entries.
    pub actions: Vec<Action>,
    /// Makes the number of hits.
    pub hits: Hits,
}

/// The hits of a request for a descriptor.
#[derive(Debug, PartialEq)]
pub enum Hits {
    /// Always the same number.
    Number(u32),
    /// The number in a header.
    Header(String),
}

/// An action of a descriptor.
#[derive(Debug, PartialEq)]
#[allow(missing_docs)] // the fields are those of Envoy's actions
pub enum Action {
    RequestHeaders { header: String, key: String, skip: bool },
    QueryParameters { parameter: String, key: String, skip: bool },
    GenericKey { key: String, value: String },
    HeaderValueMatch { key: String, value: String, expect: bool, headers: Vec<HeaderMatch> },
    RemoteAddress,
    MaskedRemoteAddress { v4: u8, v6: u8 },
}

/// Most hits of a request for a descriptor, as in Envoy.
pub const MOST_HITS: u32 = 1_000_000_000;
/// Most descriptors of a filter, and most actions of a descriptor.
const MOST: usize = 64;

impl Config {
    /// Parses a configuration. The error names the field that the module cannot honor.
    pub fn parse(text: &[u8]) -> Result<Config, String> {
        let value: Value = serde_json::from_slice(text).map_err(|e| format!("not JSON: {e}"))?;
        let mut fields = Fields::of(value, "")?;
        let domain = fields.text("domain")?;
        let config = Config {
            socket: fields.text("socket")?,
            node: fields.optional_text("node")?.unwrap_or_default(),
            state: format!("keyward.leased/{domain}"),
            domain,
            limits: fields
                .list("limits")?
                .into_iter()
                .enumerate()
                .map(|(i, limit)| limit_of(limit, &format!("limits[{i}]")))
                .collect::<Result<_, _>>()?,
        };
        fields.end()?;
        Ok(config)
    }

    /// Returns an error that names the first action for which the headers of a request are not enough.
    pub fn needs_headers_only(&self) -> Result<(), String> {
        for (i, limit) in self.limits.iter().enumerate() {
            for (j, action) in limit.actions.iter().enumerate() {
                if let Action::RemoteAddress | Action::MaskedRemoteAddress { .. } = action {
                    return Err(format!(
                        "limits[{i}].actions[{j}]: a matcher has no addresses; use the module's filter"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn limit_of(limit: Value, path: &str) -> Result<Limit, String> {
    let mut fields = Fields::of(limit, path)?;
    let actions = fields.list("actions")?;
    let hits = match fields.object("hits_addend")? {
        Some(f) => hits_of(f)?,
        None => Hits::Number(1),
    };
    fields.end()?;
    let actions = actions.into_iter().enumerate().map(|(i, a)| action_of(a, &format!("{path}.actions[{i}]")));
    Ok(Limit { actions: actions.collect::<Result<_, _>>()?, hits })
}

fn hits_of(mut f: Fields) -> Result<Hits, String> {
    let number = f.map.remove("number");
    let hits = match (number.as_ref().map(Value::as_f64), f.optional_text("format")?) {
        (Some(Some(n)), None) if n.fract() == 0.0 && (0.0..=f64::from(MOST_HITS)).contains(&n) => {
            Hits::Number(n as u32)
        }
        (Some(_), None) => return f.fault(&format!("number: want a number from 0 to {MOST_HITS}")),
        (None, Some(format)) => match header_of(&format) {
            Some(header) => Hits::Header(header.to_ascii_lowercase()),
            None => return f.fault("format: the module has no other than %REQ(header)%"),
        },
        _ => return f.fault("want one of number and format"),
    };
    f.end()?;
    Ok(hits)
}

/// Returns the header of the format %REQ(header)%.
fn header_of(format: &str) -> Option<&str> {
    let name = format.strip_prefix("%REQ(")?.strip_suffix(")%")?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (!name.is_empty() && name.bytes().all(plain)).then_some(name)
}

fn action_of(action: Value, path: &str) -> Result<Action, String> {
    let all = Fields::of(action, path)?.map;
    let mut all = all.into_iter();
    let (Some((name, value)), None) = (all.next(), all.next()) else {
        return Err(format!("{path}: want one action"));
    };
    let mut f = Fields::of(value, &format!("{path}.{name}"))?;
    let action = match name.as_str() {
        "request_headers" => Action::RequestHeaders {
            header: f.text("header_name")?.to_ascii_lowercase(),
            key: f.text("descriptor_key")?,
            skip: f.flag("skip_if_absent")?.unwrap_or(false),
        },
        "query_parameters" => Action::QueryParameters {
            parameter: f.text("query_parameter_name")?,
            key: f.text("descriptor_key")?,
            skip: f.flag("skip_if_absent")?.unwrap_or(false),
        },
        "generic_key" => Action::GenericKey { key: f.key("generic_key")?, value: f.literal("descriptor_value")? },
        "header_value_match" => Action::HeaderValueMatch {
            key: f.key("header_match")?,
            value: f.literal("descriptor_value")?,
            expect: f.flag("expect_match")?.unwrap_or(true),
            headers: matches_of(&mut f)?,
        },
        "remote_address" => Action::RemoteAddress,
        "masked_remote_address" => Action::MaskedRemoteAddress {
            v4: f.number("v4_prefix_mask_len", 32)?.unwrap_or(32),
            v6: f.number("v6_prefix_mask_len", 128)?.unwrap_or(128),
        },
        _ => {
            return Err(format!(
                "{path}: the module has no action {name}: want request_headers, query_parameters, generic_key, \
                 header_value_match, remote_address or masked_remote_address"
            ))
        }
    };
    f.end()?;
    Ok(action)
}

fn matches_of(f: &mut Fields) -> Result<Vec<HeaderMatch>, String> {
    let path = format!("{}.headers", f.path);
    f.list("headers")?
        .into_iter()
        .enumerate()
        .map(|(i, v)| {
            let mut f = Fields::of(v, &format!("{path}[{i}]"))?;
            let m = HeaderMatch::parse(&mut f)?;
            f.end()?;
            Ok(m)
        })
        .collect()
}

/// The fields of an object that are not read yet.
pub(crate) struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    pub(crate) fn of(value: Value, path: &str) -> Result<Fields, String> {
        match value {
            Value::Object(map) => Ok(Fields { map, path: path.to_owned() }),
            _ => Err(format!("{}: want an object", if path.is_empty() { "configuration" } else { path })),
        }
    }

    fn name(&self, field: &str) -> String {
        if self.path.is_empty() {
            field.to_owned()
        } else {
            format!("{}.{field}", self.path)
        }
    }

    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Fields>, String> {
        let path = self.name(field);
        self.map.remove(field).map(|v| Fields::of(v, &path)).transpose()
    }

    pub(crate) fn text(&mut self, field: &str) -> Result<String, String> {
        match self.optional_text(field)? {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(format!("{}: missing or empty", self.name(field))),
        }
    }

    pub(crate) fn optional_text(&mut self, field: &str) -> Result<Option<String>, String> {
        match self.map.remove(field) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= usize::from(u16::MAX) => Ok(Some(text)),
            Some(_) => Err(format!("{}: want a string of at most 65,535 bytes", self.name(field))),
        }
    }

    /// Returns the value that Envoy adds as it is. Newer Envoys read `%` as the start of a command.
    fn literal(&mut self, field: &str) -> Result<String, String> {
        let text = self.text(field)?;
        if text.contains('%') {
            return Err(format!("{}: the module does not format values", self.name(field)));
        }
        Ok(text)
    }

    fn key(&mut self, default: &str) -> Result<String, String> {
        let key = self.optional_text("descriptor_key")?.filter(|k| !k.is_empty());
        Ok(key.unwrap_or_else(|| default.to_owned()))
    }

    pub(crate) fn flag(&mut self, field: &str) -> Result<Option<bool>, String> {
        match self.map.remove(field) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(b)),
            Some(_) => Err(format!("{}: want true or false", self.name(field))),
        }
    }

    fn number(&mut self, field: &str, most: u8) -> Result<Option<u8>, String> {
        let Some(value) = self.map.remove(field) else { return Ok(None) };
        match value.as_f64() {
            // a Struct has no integers
            Some(n) if n.fract() == 0.0 && (0.0..=f64::from(most)).contains(&n) => Ok(Some(n as u8)),
            _ => Err(format!("{}: want a number from 0 to {most}", self.name(field))),
        }
    }

    fn list(&mut self, field: &str) -> Result<Vec<Value>, String> {
        match self.map.remove(field) {
            Some(Value::Array(list)) if (1..=MOST).contains(&list.len()) => Ok(list),
            _ => Err(format!("{}: want a list of 1 to {MOST} elements", self.name(field))),
        }
    }

    pub(crate) fn fault<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("{}: {what}", self.path))
    }

    pub(crate) fn end(self) -> Result<(), String> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(field) => Err(format!("{}: the module has no such field", self.name(field))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(actions: &str) -> Result<Config, String> {
        Config::parse(format!(r#"{{"socket":"/s","domain":"app","limits":[{{"actions":[{actions}]}}]}}"#).as_bytes())
    }

    #[test]
    fn parses() {
        let c = with(
            r#"{"request_headers":{"header_name":"X-Key","descriptor_key":"k","skip_if_absent":true}},
            {"generic_key":{"descriptor_value":"v"}}, {"remote_address":{}}, {"masked_remote_address":{"v4_prefix_mask_len":24.0}}"#,
        );
        let want = vec![
            Action::RequestHeaders { header: "x-key".into(), key: "k".into(), skip: true },
            Action::GenericKey { key: "generic_key".into(), value: "v".into() },
            Action::RemoteAddress,
            Action::MaskedRemoteAddress { v4: 24, v6: 128 },
        ];
        let c = c.unwrap();
        assert_eq!(c.limits, vec![Limit { actions: want, hits: Hits::Number(1) }]);
        assert_eq!(c.state, "keyward.leased/app");
    }

    #[test]
    fn needs_headers_only() {
        let of = |actions: &str| with(actions).unwrap().needs_headers_only();
        assert_eq!(of(r#"{"generic_key":{"descriptor_value":"v"}}"#), Ok(()));
        for action in [r#"{"remote_address":{}}"#, r#"{"masked_remote_address":{}}"#] {
            let got = of(&format!(r#"{{"generic_key":{{"descriptor_value":"v"}}}},{action}"#)).unwrap_err();
            assert_eq!(got, "limits[0].actions[1]: a matcher has no addresses; use the module's filter");
        }
    }

    fn hits(addend: &str) -> Result<Hits, String> {
        let text = format!(
            r#"{{"socket":"/s","domain":"app","limits":[{{"actions":[{{"remote_address":{{}}}}],"hits_addend":{addend}}}]}}"#
        );
        Config::parse(text.as_bytes()).map(|mut c| c.limits.remove(0).hits)
    }

    #[test]
    fn parses_hits() {
        assert_eq!(hits(r#"{"number":3.0}"#), Ok(Hits::Number(3)));
        assert_eq!(hits(r#"{"number":0}"#), Ok(Hits::Number(0)));
        assert_eq!(hits(r#"{"format":"%REQ(X-Cost)%"}"#), Ok(Hits::Header("x-cost".into())));
        for (addend, want) in [
            ("{}", "limits[0].hits_addend: want one of number and format"),
            (r#"{"number":1,"format":"%REQ(a)%"}"#, "want one of number and format"),
            (r#"{"number":1.5}"#, "number: want a number"),
            (r#"{"number":-1}"#, "number: want a number"),
            (r#"{"number":"2"}"#, "number: want a number"),
            (r#"{"number":1000000001}"#, "number: want a number"),
            (r#"{"format":"%REQ(a?b)%"}"#, "format: the module has no other"),
            (r#"{"format":"%REQ(a):9%"}"#, "format: the module has no other"),
            (r#"{"format":"1%REQ(a)%"}"#, "format: the module has no other"),
            (r#"{"format":"%REQ()%"}"#, "format: the module has no other"),
            (r#"{"format":"%REQ(:path)%"}"#, "format: the module has no other"),
            (r#"{"format":"%DYNAMIC_METADATA(a:b)%"}"#, "format: the module has no other"),
            (r#"{"number":1,"is_negative_hits":true}"#, "no such field"),
        ] {
            let got = hits(addend).unwrap_err();
            assert!(got.contains(want), "{addend}: {got}");
        }
    }

    /// What the module cannot do exactly as Envoy is an error, which names the place.
    #[test]
    fn refuses() {
        for (actions, want) in [
            (r#"{"metadata":{}}"#, "limits[0].actions[0]: the module has no action metadata"),
            (r#"{"remote_address":{},"generic_key":{}}"#, "want one action"),
            (r#"{"generic_key":{"descriptor_value":"%REQ(a)%"}}"#, "does not format values"),
            (
                r#"{"generic_key":{"descriptor_value":"v","default_value":"x"}}"#,
                "generic_key.default_value: the module has no such field",
            ),
            (r#"{"request_headers":{"descriptor_key":"k"}}"#, "request_headers.header_name: missing or empty"),
            (r#"{"masked_remote_address":{"v4_prefix_mask_len":33}}"#, "want a number from 0 to 32"),
            (
                r#"{"header_value_match":{"descriptor_value":"v","headers":[{"name":"a","string_match":{"safe_regex":{}}}]}}"#,
                "safe_regex",
            ),
            ("", "limits[0].actions: want a list"),
        ] {
            let got = with(actions).unwrap_err();
            assert!(got.contains(want), "{actions}: {got}");
        }
        for (text, want) in [
            ("{", "not JSON"),
            ("[]", "want an object"),
            (r#"{"domain":"app"}"#, "socket: missing or empty"),
            (
                r#"{"socket":"/s","domain":"app","limits":[{"actions":[{"remote_address":{}}],"limit":{}}]}"#,
                "limits[0].limit: the module has no such field",
            ),
            (
                r#"{"socket":"/s","domain":"app","limits":[{"actions":[{"remote_address":{}}]}],"stage":1}"#,
                "stage: the module has no such field",
            ),
        ] {
            let got = Config::parse(text.as_bytes()).unwrap_err();
            assert!(got.contains(want), "{text}: {got}");
        }
    }
}
