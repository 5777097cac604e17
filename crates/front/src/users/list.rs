//! What a line of `ACL LIST` says about a user.

/// The rules of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) on: bool,
    /// Any password will do.
    pub(super) nopass: bool,
    /// Every command, key and channel.
    pub(super) full: bool,
    /// Which keys and channels a command names does not matter.
    pub(super) keyless: bool,
    /// Commands (in capitals) for which the first argument matters.
    pub(super) first_argument: Vec<Vec<u8>>,
}

/// Reads `user NAME RULE …`.
pub(super) fn parse(line: &[u8]) -> Option<(&[u8], Rules)> {
    let mut words = line.split(|&byte| byte == b' ');
    if words.next()? != b"user" {
        return None;
    }
    let name = words.next()?;
    let (mut rules, mut selectors, mut takes_away) = (Rules::default(), false, false);
    let (mut keys, mut channels, mut commands) = (false, false, false);
    for word in words {
        selectors |= word.starts_with(b"(");
        let rule = word.strip_prefix(b"(").unwrap_or(word);
        if let [b'+' | b'-', command @ ..] = rule
            && let Some(end) = command.iter().position(|&byte| byte == b'|')
        {
            rules
                .first_argument
                .push(command[..end].to_ascii_uppercase());
        }
        if selectors {
            // They add rights to what is in front of them.
            continue;
        }
        match rule {
            b"on" => rules.on = true,
            b"nopass" => rules.nopass = true,
            b"~*" => keys = true,
            b"&*" => channels = true,
            b"+@all" => commands = true,
            [b'-', ..] => takes_away = true,
            _ => {}
        }
    }
    rules.full = keys && channels && commands && !takes_away;
    rules.keyless = keys && channels && !selectors;
    Some((name, rules))
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
        for line in [
            "user bob on #aa ~a:* &* +@all",
            "user bob on #aa ~* &ch* +@all",
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
}
