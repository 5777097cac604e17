//! Finds secrets, and removes them from texts.
//!
//! Each text is cleaned in two ways. First, known secrets are removed at every place, in base64 as well. Known secrets
//! come from the configuration, the environment, and the files that these name. Second, text that has the form of a
//! secret is removed: `name:password@` in URLs, values of names such as `password`, private keys, `Basic …` and `Bearer
//! …`.

use std::collections::BTreeSet;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use pmnet_cli::bounded_text;
use pmnet_keys::key_text;
use pmnet_wire::percent_decode;
use regex::{Captures, Regex, RegexBuilder};
use toml::{Table, Value};

/// The text that replaces a removed secret.
pub const REMOVED: &str = "(removed)";
/// Minimum length of a secret that is removed at every place. A shorter secret is removed only where the form of the
/// text shows a secret.
const LETTERS_MIN: usize = 4;
/// Minimum length of a secret that is also removed in base64 and in hexadecimal digits.
const ENCODED_MIN: usize = 6;
/// Minimum length of a word in a key file that counts as a key.
const WORD_MIN: usize = 24;
/// Maximum size of a file that is searched for its secrets, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// If a name contains one of these parts, its value is a secret.
const NAMES: &str =
    "password|passwd|requirepass|masterauth|secret|token|credential|apikey|api_key|api-key";
/// Keys of the configuration whose values are paths of files with secrets.
const FILES: [&str; 7] = [
    "key",
    "tls-key",
    "etcd-key",
    "requirepass-file",
    "store-password-file",
    "sentinel-password-file",
    "etcd-password-file",
];

/// The known secrets, and the regular expressions for the forms of secrets.
pub struct Secrets {
    known: BTreeSet<String>,
    url: Regex,
    named: Regex,
    name: Regex,
    private_key: Regex,
    header: Regex,
    /// Files whose secrets could not be read, with the reasons.
    pub unread: Vec<String>,
}

/// Compiles a regular expression of this module. The tests compile all expressions of the module.
fn expression(text: &str) -> anyhow::Result<Regex> {
    Ok(RegexBuilder::new(text)
        .case_insensitive(true)
        .dot_matches_new_line(true)
        .build()?)
}

impl Secrets {
    /// Makes a value without known secrets.
    ///
    /// # Errors
    /// Never fails, because the expressions are constants.
    pub fn new() -> anyhow::Result<Secrets> {
        Ok(Secrets {
            known: BTreeSet::new(),
            url: expression(r#"://([^\s/@"'<>]+)@"#)?,
            named: expression(&format!(
                r#"([\w.-]*(?:{NAMES})[\w.-]*)(\\?["']?\s*[=:]\s*\\?["']?)([^\s"'\\,;&]+)"#
            ))?,
            name: expression(&format!("(?:{NAMES})"))?,
            private_key: expression(
                r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)",
            )?,
            header: expression(r"\b(basic|bearer)\s+[A-Za-z0-9+/=._~-]{8,}")?,
            unread: Vec::new(),
        })
    }

    /// Adds a secret, in all forms in which it can appear.
    pub fn add(&mut self, secret: &str) {
        let secret = secret.trim();
        if secret.len() < LETTERS_MIN || secret == REMOVED {
            return;
        }
        // In a URL, characters of a secret may be %-escapes.
        for secret in BTreeSet::from_iter(
            [secret.to_owned()]
                .into_iter()
                .chain(percent_decode(secret)),
        ) {
            self.known.insert(percent_encoded(&secret));
            let escaped = serde_json::Value::from(secret.as_str()).to_string();
            self.known.insert(escaped.trim_matches('"').to_owned());
            let mut bytes = vec![secret.as_bytes().to_vec()];
            bytes.extend(unhex(&secret));
            for bytes in bytes.iter().filter(|bytes| bytes.len() >= ENCODED_MIN) {
                self.known.extend(encoded(bytes));
            }
            self.known.insert(secret);
        }
        self.known.retain(|form| form.len() >= LETTERS_MIN);
    }

    /// Adds the secrets in a URL: the password or token before `@`, and options whose values are secrets.
    fn add_url(&mut self, text: &str) {
        let found: Vec<String> = self
            .url
            .captures_iter(text)
            .map(|found| found[1].to_owned())
            .collect();
        for login in found {
            match login.split_once(':') {
                Some((_, password)) => self.add(password),
                // There is no user name, so the text before `@` is a token.
                None => self.add(&login),
            }
        }
        let options: Vec<(String, String)> = text
            .split(['?', '&'])
            .filter_map(|option| option.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for (name, value) in options {
            if self.is_secret(&name) {
                self.add(&value);
            } else if name == "key" {
                self.add_file(Path::new(&value));
            }
        }
    }

    /// Returns whether the value of this name is a secret.
    fn is_secret(&self, name: &str) -> bool {
        let lower = name.to_lowercase();
        self.name.is_match(&lower) && !lower.ends_with("file")
    }

    /// Adds the secrets in a password file or a key file.
    fn add_file(&mut self, path: &Path) {
        let text = std::fs::File::open(path).and_then(|file| bounded_text(file, FILE_BYTES_MAX));
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                self.unread.push(format!("{}: {error}", path.display()));
                return;
            }
        };
        self.add(text.lines().next().unwrap_or_default());
        for word in text.split(|char: char| char.is_whitespace() || char == '"') {
            if word.len() >= WORD_MIN {
                self.add(word);
            }
        }
    }

    /// Adds the secrets in the value of this name. Returns the value without its secrets.
    pub fn of_value(&mut self, name: &str, value: &str) -> String {
        let lower = name.to_lowercase().replace('_', "-");
        if self.is_secret(name) {
            self.add(value);
            return REMOVED.to_owned();
        }
        let is_file = |file: &str| lower == file || lower.ends_with(&format!("-{file}"));
        if FILES.into_iter().any(is_file) {
            self.add_file(Path::new(value));
        }
        self.add_url(value);
        self.clean(value)
    }

    /// Adds the secrets in a configuration. Returns the configuration without its secrets and comments.
    ///
    /// # Errors
    /// A sentence which says that the text is not TOML. The sentence does not quote the text.
    pub fn of_toml(&mut self, text: &str) -> Result<String, String> {
        let mut table: Table = toml::from_str(text).map_err(|error: toml::de::Error| {
            let place = error.span().map_or(0, |span| span.start);
            let line = text
                .get(..place)
                .map_or(0, |before| before.matches('\n').count());
            format!("line {} is no TOML", line + 1)
        })?;
        self.of_table(&mut table);
        toml::to_string(&table).map_err(|error| error.to_string())
    }

    fn of_table(&mut self, table: &mut Table) {
        for (key, value) in table.iter_mut() {
            self.of_one(key, value);
        }
    }

    fn of_one(&mut self, key: &str, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.of_value(key, text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.of_one(key, one)),
            Value::Table(table) => self.of_table(table),
            // The password is written as a number.
            number if self.is_secret(key) => {
                self.add(&number.to_string());
                *number = REMOVED.into();
            }
            _ => {}
        }
    }

    /// Returns the text without its secrets.
    pub fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // Longer secrets are replaced first, because a secret may be the beginning of a longer secret.
        let mut known: Vec<&String> = self.known.iter().collect();
        known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        for secret in known {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), REMOVED);
            }
        }
        let text = self.private_key.replace_all(&text, REMOVED);
        let text = self.url.replace_all(&text, format!("://{REMOVED}@"));
        let text = self.header.replace_all(&text, |found: &Captures<'_>| {
            format!("{} {REMOVED}", &found[1])
        });
        let text = self.named.replace_all(&text, |found: &Captures<'_>| {
            if found[1].to_lowercase().ends_with("file") {
                found[0].to_owned()
            } else {
                format!("{}{}{REMOVED}", &found[1], &found[2])
            }
        });
        text.into_owned()
    }
}

/// Returns the forms that these bytes can have within a longer encoded text: hexadecimal digits, and base64 for each of
/// the three possible positions of the first byte.
fn encoded(bytes: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    for before in 0..3 {
        let mut padded = vec![0; before];
        padded.extend_from_slice(bytes);
        for text in [
            STANDARD_NO_PAD.encode(&padded),
            URL_SAFE_NO_PAD.encode(&padded),
        ] {
            // The characters at both ends also depend on the neighbouring bytes, so they are left out.
            let begin = [0, 2, 3][before];
            let end = text.len() - usize::from(!padded.len().is_multiple_of(3));
            all.extend(text.get(begin..end).map(str::to_owned));
        }
    }
    all.push(key_text(bytes));
    all
}

/// Returns the bytes that the hexadecimal digits represent.
fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

fn percent_encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn what_is_known_is_removed_in_all_its_forms() {
        let secret = "s3cret/w ith\"all";
        let mut secrets = Secrets::new().unwrap();
        secrets.add(secret);
        for text in [
            format!("a {secret} b"),
            STANDARD.encode(secret),
            STANDARD.encode(format!("user:{secret}")),
            STANDARD.encode(format!("u:{secret}:x")),
            STANDARD.encode(format!("us:{secret}:xy")),
            percent_encoded(secret),
            serde_json::to_string(&[secret]).unwrap(),
            secret.bytes().map(|byte| format!("{byte:02x}")).collect(),
        ] {
            let clean = secrets.clean(&text);
            assert!(clean.contains(REMOVED), "{text}: {clean}");
            assert!(
                !clean.contains("s3cret") && !clean.contains("with"),
                "{clean}"
            );
        }
        assert_eq!(secrets.clean("nothing here"), "nothing here");
    }

    #[test]
    fn what_looks_like_a_secret_is_removed() {
        let secrets = Secrets::new().unwrap();
        for (text, clean) in [
            ("redis://me:pw@h:1/0", "redis://(removed)@h:1/0"),
            ("http://tok@h", "http://(removed)@h"),
            ("x password=abc, y", "x password=(removed), y"),
            (
                "{\"etcd_token\": \"abc\"}",
                "{\"etcd_token\": \"(removed)\"}",
            ),
            (
                "?sentinel_password=abc&a=b",
                "?sentinel_password=(removed)&a=b",
            ),
            (
                "Authorization: Basic dXNlcjpwYXNz",
                "Authorization: Basic (removed)",
            ),
            ("password-file = \"/etc/p\"", "password-file = \"/etc/p\""),
            ("redis://10.0.0.1:6379", "redis://10.0.0.1:6379"),
            ("mail me@example.org", "mail me@example.org"),
        ] {
            assert_eq!(secrets.clean(text), clean);
        }
        let pem = "a\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEI\n-----END EC PRIVATE KEY-----\nb";
        assert_eq!(secrets.clean(pem), "a\n(removed)\nb");
        // The text has only half of the key, as the last lines of a log may have.
        assert_eq!(secrets.clean(&pem[..45]), "a\n(removed)");
    }

    #[test]
    fn a_configuration_keeps_all_but_its_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pw");
        std::fs::write(&file, "infile-secret\n").unwrap();
        let mut secrets = Secrets::new().unwrap();
        let text = format!(
            "# of comment-secret\n[server]\nstore = \"redis://u:url-secret@h:1\"\nstore-password-file = \"{}\"\n[redis]\nrequirepass = \
             \"plain-secret\"\ndeadline-ms = 5\n[[shard]]\nkey = \"/none/such\"\n",
            file.display()
        );
        let clean = secrets.of_toml(&text).unwrap();
        for kept in [
            "deadline-ms = 5",
            "redis://(removed)@h:1",
            "store-password-file",
        ] {
            assert!(clean.contains(kept), "{clean}");
        }
        assert!(!clean.contains("secret"), "{clean}");
        let log = "infile-secret url-secret plain-secret";
        assert_eq!(secrets.clean(log), "(removed) (removed) (removed)");
        assert_eq!(secrets.unread.len(), 1);
        let error = secrets.of_toml("a = 1\nb = top-secret\n").unwrap_err();
        assert_eq!(error, "line 2 is no TOML");
    }
}
