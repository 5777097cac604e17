//! Patterns of `KEYS` and `MATCH`, as Redis 7.0 reads them.

/// Maximum number of nested stars that are tried. A pattern that needs more nested stars matches nothing.
const DEPTH_MAX: u32 = 1000;

/// Returns whether a text matches a pattern of `*`, `?`, `[a-c]`, `[^a]` and `\`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    attempt(pattern, text, 0, &mut false)
}

/// `give_up` is set when a star has tried all the rest of the text without a match, so that earlier stars need not try
/// longer matches.
fn attempt(mut pattern: &[u8], mut text: &[u8], depth: u32, give_up: &mut bool) -> bool {
    if depth > DEPTH_MAX {
        *give_up = true;
        return false;
    }
    while let (Some(&first), false) = (pattern.first(), text.is_empty()) {
        let byte = text[0];
        match first {
            b'*' => {
                while pattern.get(1) == Some(&b'*') {
                    pattern = &pattern[1..];
                }
                if pattern.len() == 1 {
                    return true;
                }
                while !text.is_empty() {
                    if attempt(&pattern[1..], text, depth + 1, give_up) {
                        return true;
                    }
                    if *give_up {
                        return false;
                    }
                    text = &text[1..];
                }
                *give_up = true;
                return false;
            }
            b'?' => {}
            b'[' => {
                let (matched, rest) = class(&pattern[1..], byte);
                if !matched {
                    return false;
                }
                pattern = rest;
            }
            _ => {
                if first == b'\\' && pattern.len() >= 2 {
                    pattern = &pattern[1..];
                }
                if pattern[0] != byte {
                    return false;
                }
            }
        }
        text = &text[1..];
        pattern = pattern.get(1..).unwrap_or(&[]);
        if text.is_empty() {
            while pattern.first() == Some(&b'*') {
                pattern = &pattern[1..];
            }
            break;
        }
    }
    pattern.is_empty() && text.is_empty()
}

/// Returns whether a byte is in the class that begins at the start of `pattern`. Also returns the rest of the pattern,
/// beginning with the last byte of the class.
fn class(mut pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let inverted = pattern.first() == Some(&b'^');
    if inverted {
        pattern = &pattern[1..];
    }
    let mut found = false;
    loop {
        match pattern {
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                pattern = &pattern[2..];
            }
            [b']', ..] | [] => break,
            [low, b'-', high, ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                pattern = &pattern[3..];
            }
            [single, ..] => {
                found |= *single == byte;
                pattern = &pattern[1..];
            }
        }
    }
    (found != inverted, pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text) in [
            ("*", "x"),
            ("a*c", "abbc"),
            ("a**", "a"),
            ("h?llo", "hello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-c]llo", "hbllo"),
            ("h[c-a]llo", "hbllo"),
            ("h\\?llo", "h?llo"),
            ("[\\]]", "]"),
            ("a[b", "ab"),
            ("*a*b*c", "xaybzc"),
            ("\\", "\\"),
            ("", ""),
        ] {
            assert!(
                matches(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
        for (pattern, text) in [
            ("", "x"),
            ("*", ""),
            ("a*c", "abb"),
            ("h?llo", "hllo"),
            ("h[^a]llo", "hallo"),
            ("a[", "a["),
            ("[]", "]"),
            ("a\\", "a"),
        ] {
            assert!(
                !matches(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
        let stars = "a*".repeat(5000);
        assert!(!matches(stars.as_bytes(), "a".repeat(5000).as_bytes()));
    }
}
