//! A user's rights, as a line of `ACL LIST` describes them.
//!
//! A rule that the front does not understand (of a newer Redis, or of another server) may revoke any right. So a user
//! with such a rule counts as restricted, and the front asks Redis about each command of this user.

/// A key that stands in questions to Redis for the key of a SORT. A question with this key shows whether a selector
/// that may read every key allows the command. Only a pattern without any literal byte other than 1 can match this key.
pub(super) const PROBE_KEY: &[u8] = &[1; 16];

/// The rules of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) on: bool,
    /// Whether the user accepts any password.
    pub(super) nopass: bool,
    /// Whether the user may use every command, key and channel.
    pub(super) full: bool,
    /// Whether the rights do not depend on the keys of a command.
    pub(super) keyless: bool,
    /// Whether the user has a rule about databases (Valkey's `db=`), or a rule that is not understood. For such a user,
    /// a question to Redis must name the right database.
    pub(super) odd: bool,
    /// Whether the user may read every key with a command that it may run.
    pub(super) reads: Reads,
    /// Commands (in capitals) whose rights depend on the first argument.
    pub(super) first_argument: Vec<Vec<u8>>,
    /// The rules about rights, without those about the login.
    pub(super) rights: Vec<u8>,
}

/// Whether the user may read every key. SORT with BY or GET needs this right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reads {
    /// With each command that the user may run, the user may read every key.
    All,
    /// With each command that it may run on [`PROBE_KEY`], the user may read every key.
    Some,
    #[default]
    None,
}

/// The rules of the root permissions, or of one selector.
#[derive(Default)]
struct Selector {
    /// Whether the rules allow the user to read every key.
    reads_all: bool,
    /// Whether one of the key patterns may match [`PROBE_KEY`].
    may_match: bool,
    keys: bool,
    channels: bool,
    commands: bool,
    takes_away: bool,
}

impl Selector {
    /// Adds a rule about rights. Returns false if the rule is not understood.
    fn take(&mut self, rule: &[u8]) -> bool {
        match rule {
            b"~*" => (self.keys, self.reads_all) = (true, true),
            b"&*" => self.channels = true,
            b"+@all" => self.commands = true,
            [b'~', pattern @ ..] => self.may_match |= may_match_probe(pattern),
            [b'%', rest @ ..] => {
                let Some(at) = rest.iter().position(|&byte| byte == b'~') else {
                    return false;
                };
                let (permissions, pattern) = (&rest[..at], &rest[at + 1..]);
                if permissions.iter().any(|byte| !b"RWrw".contains(byte)) {
                    return false;
                }
                if permissions.contains(&b'R') || permissions.contains(&b'r') {
                    self.reads_all |= pattern == b"*";
                    self.may_match |= may_match_probe(pattern);
                }
            }
            [b'-', ..] => self.takes_away = true,
            [b'&' | b'+', ..] | b"resetchannels" => {}
            _ => return false,
        }
        true
    }
}

/// Whether a pattern may match [`PROBE_KEY`]. A pattern cannot match the key if a part of the pattern matches only
/// other bytes.
fn may_match_probe(pattern: &[u8]) -> bool {
    let mut rest = pattern;
    while let [first, behind @ ..] = rest {
        rest = behind;
        match first {
            b'*' | b'?' => {}
            b'[' => {
                let end = behind.iter().position(|&byte| byte == b']');
                let (inside, after) = behind.split_at(end.unwrap_or(behind.len()));
                // A special byte may stand for any other byte.
                let plain = |byte: &u8| !b"^\\-".contains(byte) && *byte != PROBE_KEY[0];
                if inside.iter().all(plain) {
                    return false;
                }
                rest = after.get(1..).unwrap_or_default();
            }
            // Some of these bytes change the meaning of the bytes after them.
            b'\\' | b']' | b'^' | b'-' => {}
            byte if *byte == PROBE_KEY[0] => {}
            _ => return false,
        }
    }
    true
}

/// Parses `user NAME RULE …`.
pub(super) fn parse(line: &[u8]) -> Option<(&[u8], Rules)> {
    let mut words = line.split(|&byte| byte == b' ');
    if words.next()? != b"user" {
        return None;
    }
    let name = words.next()?;
    let mut rules = Rules::default();
    let mut selectors = vec![Selector::default()];
    let mut is_open = false;
    for word in words {
        match word {
            b"on" => rules.on = true,
            b"nopass" => rules.nopass = true,
            b"off" | b"sanitize-payload" | b"skip-sanitize-payload" | [b'#', ..] => {}
            _ => {
                rules.rights.extend_from_slice(word);
                rules.rights.push(b' ');
                let mut rule = word;
                if let Some(first) = rule.strip_prefix(b"(") {
                    rules.odd |= is_open;
                    (is_open, rule) = (true, first);
                    selectors.push(Selector::default());
                }
                // After the first selector a line has only selectors.
                rules.odd |= !is_open && selectors.len() > 1;
                let inside = is_open.then(|| rule.strip_suffix(b")")).flatten();
                is_open &= inside.is_none();
                rules.take(inside.unwrap_or(rule), selectors.last_mut()?);
            }
        }
    }
    rules.odd |= is_open;
    let root = &selectors[0];
    rules.full = root.keys && root.channels && root.commands && !root.takes_away && !rules.odd;
    rules.keyless = root.keys && selectors.len() == 1 && !rules.odd;
    rules.reads = reads(&selectors);
    Some((name, rules))
}

impl Rules {
    fn take(&mut self, rule: &[u8], selector: &mut Selector) {
        if let [b'+' | b'-', command @ ..] = rule
            && let Some(end) = command.iter().position(|&byte| byte == b'|')
        {
            self.first_argument
                .push(command[..end].to_ascii_uppercase());
        }
        self.odd |= !selector.take(rule);
    }
}

fn reads(selectors: &[Selector]) -> Reads {
    let mut others = selectors.iter().filter(|selector| !selector.reads_all);
    if others.clone().next().is_none() {
        Reads::All
    } else if others.clone().count() == selectors.len() || others.any(|other| other.may_match) {
        Reads::None
    } else {
        Reads::Some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(line: &str) -> Rules {
        let (name, rules) = parse(line.as_bytes()).unwrap();
        assert_eq!(name, b"bob");
        rules
    }

    #[test]
    fn lines_of_redis_are_understood() {
        for line in [
            "user bob on nopass ~* &* +@all",
            "user bob on nopass sanitize-payload ~* &* +@all",
            "user bob on nopass ~* &* +@all (~a -@all +get)",
        ] {
            let rules = rules(line);
            assert!(rules.on && rules.nopass && rules.full, "{line}");
        }
        let off = rules("user bob off #aa ~* &* +@all -flushall");
        assert!(!off.on && !off.nopass && !off.full && off.keyless);
        let no_channels = rules("user bob on #aa ~* resetchannels &ch* +@all");
        assert!(!no_channels.full && no_channels.keyless && no_channels.reads == Reads::All);
        for line in [
            "user bob on #aa ~a:* &* +@all",
            "user bob on #aa resetchannels -@all +get",
            "user bob on #aa %R~* &* +@all",
            "user bob on #aa ~* resetchannels +@all (&* ~* +@all)",
        ] {
            let rules = rules(line);
            assert!(!rules.full && !rules.keyless, "{line}");
        }
        let line = "user bob on ~* &* -@all +config|get (~a -@all +select|0)";
        let rules = rules(line);
        assert_eq!(rules.first_argument, [&b"CONFIG"[..], b"SELECT"]);
        assert!(!rules.full && !rules.keyless);
        assert!(parse(b"bob on").is_none() && parse(b"user").is_none() && parse(b"").is_none());
    }

    /// The list has rules of Valkey 9.1, and invented rules.
    #[test]
    fn a_rule_that_is_not_understood_takes_all_rights_away() {
        for odd in ["db=1", "alldbs", "!x", "%X~*", "%R", "allkeys2", "x)", ""] {
            for line in [
                format!("user bob on nopass ~* &* {odd} +@all"),
                format!("user bob on nopass {odd} ~* &* +@all"),
                format!("user bob on nopass ~* &* +@all {odd}"),
                format!("user bob on nopass ~* &* +@all (~a {odd} +get)"),
            ] {
                let rules = rules(&line);
                assert!(!rules.full && !rules.keyless && rules.odd, "{line}");
            }
        }
        for line in [
            "user bob on ~* &* +@all (~a +get",
            "user bob on ~* &* +@all (~a (~b +get)",
            "user bob on ~* &* +@all (~a +get) +set",
        ] {
            assert!(!rules(line).full && rules(line).odd, "{line}");
        }
    }

    #[test]
    fn how_one_logs_in_is_no_right() {
        let rights = rules("user bob on #aa ~a &* +@all (~b +get)").rights;
        for line in [
            "user bob off #bb ~a &* +@all (~b +get)",
            "user bob on nopass sanitize-payload #aa #cc ~a &* +@all (~b +get)",
        ] {
            assert_eq!(rules(line).rights, rights, "{line}");
        }
        for line in [
            "user bob on #aa ~b &* +@all (~b +get)",
            "user bob on #aa ~a &* +@all",
            "user bob on #aa ~a &* +@all odd (~b +get)",
        ] {
            assert_ne!(rules(line).rights, rights, "{line}");
        }
    }

    #[test]
    fn who_reads_all_keys_with_what_it_may_run_is_known() {
        for (line, reads) in [
            ("~* +@all", Reads::All),
            ("%R~* %W~a +@all", Reads::All),
            ("~* +@all (%R~* +get)", Reads::All),
            ("%W~* +@all", Reads::None),
            ("~a +@all", Reads::None),
            ("+@all", Reads::None),
            ("~a +@all (~* +get)", Reads::Some),
            ("%W~* +@all (~* +get)", Reads::Some),
            ("~* +@all (~a +get)", Reads::Some),
            // The following patterns may match the probe key.
            ("~?* +@all (~* +get)", Reads::None),
            ("~[^a]* +@all (~* +get)", Reads::None),
            ("~[a-z]* +@all (~* +get)", Reads::None),
            ("~[\u{1}a]* +@all (~* +get)", Reads::None),
            ("~[ab]* +@all (~* +get)", Reads::Some),
            ("~*[ab +@all (~* +get)", Reads::Some),
            ("~?[^a]x +@all (~* +get)", Reads::Some),
            ("~\u{1}* +@all (~* +get)", Reads::None),
            ("~** +@all (~* +get)", Reads::None),
        ] {
            assert_eq!(rules(&format!("user bob on {line}")).reads, reads, "{line}");
        }
    }
}
