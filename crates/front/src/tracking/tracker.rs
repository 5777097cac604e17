//! The tracking settings of one client: CLIENT TRACKING ON with its options, and CLIENT CACHING.

use bytes::Bytes;
use pmnet_resp::{
    Arguments, parse_integer, reply, write_bulk, write_header, write_integer, write_map,
};

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const ONE_REDIRECT: &str = "ERR A client can only redirect to a single other client";
const NO_REDIRECT: &str = "ERR The client ID you want redirect to does not exist";
const PREFIX_NEEDS_BCAST: &str = "ERR PREFIX option requires BCAST mode to be enabled";
const SWITCHES_BCAST: &str = "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with \
                              a different mode.";
const OPT_WITH_BCAST: &str = "ERR OPTIN and OPTOUT are not compatible with BCAST";
const BOTH_OPT: &str = "ERR You can't specify both OPTIN mode and OPTOUT mode";
const SWITCHES_OPT: &str = "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a \
                            different mode.";
const NOT_OPT: &str = "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";
const YES_NEEDS_OPTIN: &str =
    "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.";
const NO_NEEDS_OPTOUT: &str =
    "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.";
/// Maximum number of prefixes of one client, and maximum number of bytes in all these prefixes. Each changed key is
/// compared with each prefix.
const PREFIXES_MAX: usize = 1024;
const PREFIX_BYTES_MAX: usize = 64 * 1024;

/// A client with CLIENT TRACKING ON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tracker {
    /// The client that gets the messages in place of this client; 0: no other client.
    pub(crate) redirect: u64,
    /// Whether the client named in REDIRECT has disconnected.
    pub(crate) broken: bool,
    pub(crate) no_loop: bool,
    /// `Some`: mode BCAST. The client is told of every changed key that begins with one of these prefixes.
    broadcast: Option<Vec<Bytes>>,
    opt_in: bool,
    opt_out: bool,
    /// Whether CLIENT CACHING was sent, which concerns the next command.
    pub(crate) caching: bool,
}

/// The options of CLIENT TRACKING.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    redirect: i64,
    broadcast: bool,
    opt_in: bool,
    opt_out: bool,
    no_loop: bool,
    prefixes: Vec<Bytes>,
}

impl Wish {
    /// Parses the options of `CLIENT TRACKING ON|OFF …`.
    ///
    /// # Errors
    /// Redis's error for invalid options.
    pub(crate) fn parse(
        arguments: &Arguments<'_>,
        is_there: impl Fn(i64) -> bool,
    ) -> Result<Wish, Bytes> {
        let mut wish = Wish::default();
        let mut at = 3;
        while at < arguments.len() {
            let more = at + 1 < arguments.len();
            if arguments.is(at, "REDIRECT") && more {
                at += 1;
                if wish.redirect != 0 {
                    return Err(reply::error(ONE_REDIRECT));
                }
                let number = parse_integer(arguments.get(at));
                wish.redirect = number.ok_or_else(|| reply::error(NOT_AN_INTEGER))?;
                if !is_there(wish.redirect) {
                    return Err(reply::error(NO_REDIRECT));
                }
            } else if arguments.is(at, "BCAST") {
                wish.broadcast = true;
            } else if arguments.is(at, "OPTIN") {
                wish.opt_in = true;
            } else if arguments.is(at, "OPTOUT") {
                wish.opt_out = true;
            } else if arguments.is(at, "NOLOOP") {
                wish.no_loop = true;
            } else if arguments.is(at, "PREFIX") && more {
                at += 1;
                wish.prefixes
                    .push(Bytes::copy_from_slice(arguments.get(at)));
            } else {
                return Err(reply::error(SYNTAX));
            }
            at += 1;
        }
        Ok(wish)
    }

    /// Returns the settings of a client that has sent these options. `before`: the client's present settings.
    ///
    /// # Errors
    /// Redis's error, if the options contradict each other or the settings in `before`.
    pub(super) fn apply(
        self,
        before: Option<&Tracker>,
        is_there: impl Fn(i64) -> bool,
    ) -> Result<Tracker, Bytes> {
        let fail = |text: &str| Err(reply::error(text));
        if self.redirect != 0 && !is_there(self.redirect) {
            return fail(NO_REDIRECT);
        }
        if !self.broadcast && !self.prefixes.is_empty() {
            return fail(PREFIX_NEEDS_BCAST);
        }
        if before.is_some_and(|before| before.broadcasts() != self.broadcast) {
            return fail(SWITCHES_BCAST);
        }
        if self.broadcast && (self.opt_in || self.opt_out) {
            return fail(OPT_WITH_BCAST);
        }
        if self.opt_in && self.opt_out {
            return fail(BOTH_OPT);
        }
        let switches =
            |before: &Tracker| (self.opt_in && before.opt_out) || (self.opt_out && before.opt_in);
        if before.is_some_and(switches) {
            return fail(SWITCHES_OPT);
        }
        let mut prefixes = before.map_or(&[][..], Tracker::prefixes).to_vec();
        collisions(&self.prefixes, &prefixes)?;
        if self.broadcast {
            if self.prefixes.is_empty() {
                prefixes.push(Bytes::new());
            }
            prefixes.extend(self.prefixes);
            prefixes.sort();
            prefixes.dedup();
        }
        let bytes: usize = prefixes.iter().map(Bytes::len).sum();
        if prefixes.len() > PREFIXES_MAX || bytes > PREFIX_BYTES_MAX {
            return fail(&format!(
                "ERR pmnet: a client can have {PREFIXES_MAX} prefixes of {PREFIX_BYTES_MAX} bytes together"
            ));
        }
        Ok(Tracker {
            redirect: u64::try_from(self.redirect).unwrap_or(0),
            broken: false,
            no_loop: self.no_loop,
            broadcast: self.broadcast.then_some(prefixes),
            opt_in: self.opt_in,
            opt_out: self.opt_out,
            caching: before.is_some_and(|before| before.caching),
        })
    }
}

/// Returns an error if a key could begin with two of the prefixes.
fn collisions(new: &[Bytes], there: &[Bytes]) -> Result<(), Bytes> {
    let overlap = |one: &Bytes, other: &Bytes| one.starts_with(other) || other.starts_with(one);
    for (at, prefix) in new.iter().enumerate() {
        let own = new[at + 1..]
            .iter()
            .map(|other| (other, "another provided"));
        let before = there.iter().map(|other| (other, "an existing"));
        let found = before.chain(own).find(|(other, _)| overlap(prefix, other));
        if let Some((other, which)) = found {
            let [prefix, other] = [prefix, other].map(|text| String::from_utf8_lossy(text));
            return Err(reply::error(&format!(
                "ERR Prefix '{prefix}' overlaps with {which} prefix '{other}'. Prefixes for a single client must not overlap."
            )));
        }
    }
    Ok(())
}

impl Tracker {
    /// Whether the client is in the mode BCAST.
    pub(crate) fn broadcasts(&self) -> bool {
        self.broadcast.is_some()
    }

    pub(super) fn prefixes(&self) -> &[Bytes] {
        self.broadcast.as_deref().unwrap_or_default()
    }

    /// Whether the client may cache the reads of its next command. `asked`: whether CLIENT CACHING YES was queued
    /// earlier in the client's MULTI.
    pub(crate) fn keeps(&self, asked: bool) -> bool {
        let opted_in = !self.opt_in || self.caching || asked;
        let opted_out = self.opt_out && self.caching;
        opted_in && !opted_out
    }

    /// Handles CLIENT CACHING. `tracker`: `None` if the client has tracking off.
    pub(crate) fn client_caching(
        tracker: Option<&mut Tracker>,
        arguments: &Arguments<'_>,
    ) -> Bytes {
        let Some(tracker) = tracker else {
            return reply::error(NOT_OPT);
        };
        if arguments.is(2, "YES") {
            if !tracker.opt_in {
                return reply::error(YES_NEEDS_OPTIN);
            }
        } else if arguments.is(2, "NO") {
            if !tracker.opt_out {
                return reply::error(NO_NEEDS_OPTOUT);
            }
        } else {
            return reply::error(SYNTAX);
        }
        tracker.caching = true;
        reply::OK
    }

    /// Returns the client number that CLIENT GETREDIR and CLIENT LIST show.
    pub(crate) fn shown_redirect(tracker: Option<&Tracker>) -> i64 {
        tracker.map_or(-1, |tracker| {
            i64::try_from(tracker.redirect).unwrap_or(i64::MAX)
        })
    }

    /// Returns the reply to CLIENT TRACKINGINFO.
    pub(crate) fn info(tracker: Option<&Tracker>, resp3: bool) -> Bytes {
        let default = Tracker::default();
        let on = tracker.is_some();
        let it = tracker.unwrap_or(&default);
        let all = [
            ("on", on),
            ("off", !on),
            ("bcast", it.broadcasts()),
            ("optin", it.opt_in),
            ("caching-yes", it.opt_in && it.caching),
            ("optout", it.opt_out),
            ("caching-no", it.opt_out && it.caching),
            ("noloop", it.no_loop),
            ("broken_redirect", it.broken),
        ];
        let flags: Vec<&str> = all
            .iter()
            .filter_map(|(name, set)| set.then_some(*name))
            .collect();
        let mut out = Vec::new();
        write_map(&mut out, 3, resp3);
        write_bulk(&mut out, b"flags");
        if resp3 {
            out.extend_from_slice(format!("~{}\r\n", flags.len()).as_bytes());
        } else {
            write_header(&mut out, flags.len());
        }
        for flag in flags {
            write_bulk(&mut out, flag.as_bytes());
        }
        write_bulk(&mut out, b"redirect");
        write_integer(&mut out, Tracker::shown_redirect(tracker));
        write_bulk(&mut out, b"prefixes");
        write_header(&mut out, it.prefixes().len());
        for prefix in it.prefixes() {
            write_bulk(&mut out, prefix);
        }
        Bytes::from(out)
    }
}

#[cfg(test)]
impl Wish {
    /// Parses these options.
    pub(super) fn of(words: &[&str]) -> Result<Wish, Bytes> {
        use pmnet_resp::{Parser, Status, write_command};
        let mut frame = Vec::new();
        let all = [&["CLIENT", "TRACKING", "ON"], words].concat();
        write_command(&mut frame, &all);
        let mut parser = Parser::new(crate::limits::REQUESTS);
        assert!(matches!(parser.poll(&frame), Ok(Status::Complete)));
        Wish::parse(&parser.arguments(&frame), |_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(words: &[&str], before: Option<&Tracker>) -> Result<Tracker, String> {
        let text = |error: Bytes| String::from_utf8_lossy(&error).trim().to_owned();
        let wish = Wish::of(words).map_err(text)?;
        wish.apply(before, |redirect| redirect == 7).map_err(text)
    }

    #[test]
    fn prefixes_add_up_and_may_not_overlap() {
        let first = apply(&["BCAST", "PREFIX", "a:", "PREFIX", "b:"], None).unwrap();
        let both = apply(&["BCAST", "PREFIX", "c:"], Some(&first)).unwrap();
        let names: Vec<&[u8]> = both.prefixes().iter().map(|prefix| &prefix[..]).collect();
        assert_eq!(names, [b"a:", b"b:", b"c:"]);
        for words in [&["BCAST", "PREFIX", "a:x"][..], &["BCAST", "PREFIX", "a"]] {
            let error = apply(words, Some(&first)).unwrap_err();
            assert!(error.contains("an existing prefix 'a:'"), "{error}");
        }
        let error = apply(&["BCAST", "PREFIX", "xy", "PREFIX", "x"], None).unwrap_err();
        assert!(
            error.contains("'xy' overlaps with another provided prefix 'x'"),
            "{error}"
        );
        let many: Vec<String> = (0..=PREFIXES_MAX).map(|at| format!("{at:06}")).collect();
        let words = many.iter().flat_map(|prefix| ["PREFIX", prefix]);
        let words: Vec<&str> = ["BCAST"].into_iter().chain(words).collect();
        assert!(
            apply(&words, None).unwrap_err().contains("pmnet"),
            "too many"
        );
    }

    #[test]
    fn what_is_kept_depends_on_opting() {
        let keeps = |words: &[&str], caching: bool, asked: bool| {
            let mut tracker = apply(words, None).unwrap();
            tracker.caching = caching;
            tracker.keeps(asked)
        };
        assert!(keeps(&[], false, false));
        assert!(!keeps(&["OPTIN"], false, false));
        assert!(keeps(&["OPTIN"], true, false));
        assert!(keeps(&["OPTIN"], false, true));
        assert!(keeps(&["OPTOUT"], false, false));
        assert!(!keeps(&["OPTOUT"], true, false));
    }
}
