//! Checks that the command lines and settings in the documentation exist in the program.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::Command;
use pmnet::cli::{check_file, definition, is_command_line};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::{pages, root};

/// Flags of etcd and apt, which the user guides mention without a command line.
const FOREIGN: &[&str] = &[
    "--allow-downgrades",
    "--auto-compaction-mode",
    "--bcrypt-cost",
    "--cert-file",
    "--client-cert-auth",
    "--key-file",
    "--peer-cert-file",
    "--peer-client-cert-auth",
    "--peer-key-file",
    "--peer-trusted-ca-file",
    "--trusted-ca-file",
    "--auto-compaction-retention",
    "--initial-cluster-state",
    "--quota-backend-bytes",
];

/// Returns the code of a page: code within lines, and code blocks with their language.
fn code(text: &str) -> (Vec<String>, Vec<(String, String)>) {
    let (mut spans, mut blocks) = (Vec::new(), Vec::new());
    let mut block: Option<(String, String)> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(info) => info.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                block = Some((language, String::new()));
            }
            Event::End(TagEnd::CodeBlock) => blocks.extend(block.take()),
            Event::Text(text) => {
                if let Some((_, content)) = &mut block {
                    content.push_str(&text);
                }
            }
            Event::Code(text) => spans.push(text.into_string()),
            _ => {}
        }
    }
    (spans, blocks)
}

/// Returns the command lines of pmnet in a shell block, without prompts, `&`, `exec` and comments.
fn lines_of_pmnet(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| {
        let line = line.split(" #").next().unwrap_or_default().trim();
        let line = line.strip_prefix("$ ").unwrap_or(line);
        let line = line.strip_prefix("exec ").unwrap_or(line);
        let line = line.strip_suffix('&').unwrap_or(line).trim_end();
        line.starts_with("pmnet ").then(|| line.to_owned())
    });
    lines.collect()
}

/// Returns the words of a line, without shell quotes.
fn words(line: &str) -> Vec<String> {
    let words = line.split_whitespace();
    words
        .map(|word| word.trim_matches(['\'', '"']).to_owned())
        .collect()
}

/// Adds the long flags of a command to `known`.
fn flags<'a>(command: &'a Command, known: &mut BTreeSet<&'a str>) {
    for arg in command.get_arguments() {
        known.extend(arg.get_long());
        known.extend(arg.get_all_aliases().unwrap_or_default());
    }
    known.extend(["help", "version"]);
}

/// Returns the first name in the command line that the program does not have, of a subcommand or of a flag.
fn unknown(root: &Command, line: &str) -> Option<String> {
    let words = words(line);
    let mut command = root;
    let mut known = BTreeSet::new();
    flags(command, &mut known);
    let mut rest = words.iter().skip(1).peekable();
    while let Some(word) = rest.peek() {
        let Some(sub) = command.find_subcommand(word.as_str()) else {
            break;
        };
        command = sub;
        flags(command, &mut known);
        rest.next();
    }
    if std::ptr::eq(command, root) {
        let word = rest.next()?;
        let is_placeholder =
            word.starts_with(['…', '-']) || word.chars().all(|char| char.is_ascii_uppercase());
        return (!is_placeholder).then(|| word.clone());
    }
    // The subcommand may come after flags: `pmnet ctl --via … add`.
    let mut named = Vec::new();
    for word in rest {
        if let Some(sub) = command.find_subcommand(word.as_str()) {
            command = sub;
            flags(command, &mut known);
        } else if let Some(flag) = word.strip_prefix("--") {
            named.push(flag.split('=').next().unwrap_or_default().to_owned());
        }
    }
    if line.contains('…') {
        // The line leaves out a part, which may have the subcommand.
        for sub in command.get_subcommands() {
            flags(sub, &mut known);
        }
    }
    named
        .into_iter()
        .map(|flag| flag.trim_end_matches([',', '.', ':', ')']).to_owned())
        .find(|flag| !flag.is_empty() && !known.contains(flag.as_str()))
        .map(|flag| format!("--{flag}"))
}

/// Returns whether a line is complete: no part is left out or is a shell variable.
fn is_whole(line: &str) -> bool {
    !line.contains(['…', '$', '|', '<', '>', ';', '('])
}

#[test]
fn every_command_line_is_one() {
    let root = definition();
    let (mut wrong, mut whole, mut parts) = (Vec::new(), 0, 0);
    for (path, text) in pages() {
        let (spans, blocks) = code(&text);
        let blocks = blocks
            .iter()
            .filter(|(language, _)| language.is_empty() || language.starts_with("sh"))
            .flat_map(|(_, block)| lines_of_pmnet(block));
        for line in blocks {
            if is_whole(&line) {
                whole += 1;
                let words = words(&line);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                if !is_command_line(&words) {
                    wrong.push(format!("{}: not understood: {line}", path.display()));
                }
            }
            parts += 1;
            if let Some(name) = unknown(&root, &line) {
                wrong.push(format!("{}: no {name}: {line}", path.display()));
            }
        }
        for span in spans.iter().filter(|span| span.starts_with("pmnet ")) {
            parts += 1;
            if let Some(name) = unknown(&root, span) {
                wrong.push(format!("{}: no {name}: {span}", path.display()));
            }
        }
    }
    assert!(whole > 40 && parts > 150, "{whole} {parts}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Adds all long flags of a command and of its subcommands to `found`.
fn all_flags(command: &Command, found: &mut BTreeSet<String>) {
    let longs = command.get_arguments().filter_map(|arg| arg.get_long());
    found.extend(longs.map(|long| format!("--{long}")));
    for sub in command.get_subcommands() {
        all_flags(sub, found);
    }
}

#[test]
fn every_flag_that_stands_alone_exists() {
    let mut known: BTreeSet<String> = FOREIGN.iter().map(|flag| (*flag).to_owned()).collect();
    all_flags(&definition(), &mut known);
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (path, text) in pages() {
        let is_for_users = [
            "docs/concepts",
            "docs/use",
            "docs/operate",
            "docs/reference",
        ]
        .iter()
        .any(|folder| path.starts_with(folder));
        if !is_for_users {
            continue;
        }
        for span in code(&text).0.iter().filter(|span| span.starts_with("--")) {
            for word in span
                .split_whitespace()
                .filter(|word| word.starts_with("--"))
            {
                count += 1;
                let flag = word.split(['=', ',']).next().unwrap_or_default();
                if !known.contains(flag) {
                    wrong.push(format!("{}: {span}", path.display()));
                }
            }
        }
    }
    assert!(count > 150, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Adds the help of a command to the page, and then the help of its subcommands.
fn help(command: &mut Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or("pmnet").to_owned();
    let text = command.render_long_help().to_string();
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
    for sub in command.get_subcommands_mut() {
        if sub.get_name() != "help" {
            help(sub, page);
        }
    }
}

#[test]
fn the_reference_is_the_help() {
    let mut page = "<!-- Generated from the program's help (crates/pmnet/src/cli). Change that, then run\n     \
        UPDATE=1 cargo test -p pmnet --test docs the_reference_is_the_help -->\n# Command line\n\n\
        `pmnet COMMAND --help` prints the same. The settings of server, device and front can also be in a \
        [file](configuration.md).\n"
        .to_owned();
    let mut command = definition().term_width(100);
    command.build();
    help(&mut command, &mut page);
    let path = root().join("docs/reference/command-line.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = there.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(
        there == page,
        "{} is not the program's help (UPDATE=1 writes it): {differ:?}",
        path.display()
    );
}

/// Maximum length of a line in the examples of a help text. Such a line can be copied from a terminal of 80 columns.
const EXAMPLE_COLUMNS_MAX: usize = 78;

/// Returns the lines that a terminal would break at a wrong place, from the part of a help text after the options.
fn badly_broken(text: &str) -> Vec<String> {
    let (mut wrong, mut before) = (Vec::new(), "");
    for line in text.lines() {
        let is_example = line.starts_with(' ');
        if is_example && line.chars().count() > EXAMPLE_COLUMNS_MAX {
            wrong.push(format!("too long for 80 columns: {line}"));
        }
        if !is_example && !line.is_empty() && !before.is_empty() {
            wrong.push(format!("a paragraph goes on in a new line: {line}"));
        }
        before = line;
    }
    wrong
}

/// Calls `look` with each command and its full name.
fn each_command(command: &Command, name: &str, look: &mut impl FnMut(&str, &Command)) {
    look(name, command);
    for sub in command.get_subcommands() {
        each_command(sub, &format!("{name} {}", sub.get_name()), look);
    }
}

#[test]
fn help_texts_wrap_at_the_width_of_the_terminal() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    each_command(&definition(), "pmnet", &mut |name, command| {
        let Some(text) = command.get_after_help() else {
            return;
        };
        count += 1;
        let found = badly_broken(&text.to_string());
        wrong.extend(found.into_iter().map(|line| format!("{name}: {line}")));
    });
    assert!(count > 8, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    for (width, longest) in [(60, 60), (200, 200)] {
        let mut command = definition().max_term_width(0).term_width(width);
        command.build();
        let mut page = String::new();
        help(&mut command, &mut page);
        let beyond = |line: &&str| {
            // A line without blanks cannot be broken. Usage lines are not broken.
            let is_broken = line.trim().contains(' ') && !line.starts_with("Usage:");
            line.chars().count() > longest && is_broken
        };
        let found: Vec<&str> = page.lines().filter(beyond).collect();
        assert!(found.is_empty(), "{width} columns: {found:?}");
        // Prose must fill its lines: with 200 columns, only the last line of a paragraph may be short.
        let prose: Vec<&str> = page.lines().collect();
        let broken = prose.windows(2).find(|lines| {
            let [line, next] = lines else { return false };
            let word = next.split(' ').next().unwrap_or_default().chars().count();
            let starts = |line: &str| line.chars().next().is_some_and(char::is_alphabetic);
            width == 200 && starts(line) && starts(next) && line.chars().count() + word < width
        });
        assert_eq!(broken, None, "{width} columns");
    }
}

#[test]
fn a_text_that_wraps_badly_is_noticed() {
    let good = "Examples:\n  pmnet a\n\nA sentence.\n";
    assert_eq!(badly_broken(good), [""; 0]);
    let two = badly_broken("A sentence\nthat goes on.");
    assert_eq!(two, ["a paragraph goes on in a new line: that goes on."]);
    let long = format!("  pmnet {}", "a".repeat(80));
    assert_eq!(
        badly_broken(&long),
        [format!("too long for 80 columns: {long}")]
    );
}

#[test]
fn every_configuration_file_is_one() {
    let page = std::fs::read_to_string(root().join("docs/reference/configuration.md")).unwrap();
    let (_, blocks) = code(&page);
    let files = blocks.iter().filter(|(language, _)| language == "toml");
    let mut count = 0;
    for (_, file) in files {
        count += 1;
        check_file(file).unwrap();
    }
    assert!(count > 0);
}

/// Checks the configuration file that packages install, as it is, and again with all commented lines active.
#[test]
fn the_file_of_the_packages_is_a_configuration() {
    let text = std::fs::read_to_string(root().join("dist/etc/pmnet.toml")).unwrap();
    check_file(&text).unwrap();
    let is_setting =
        |line: &str| line.starts_with(|char: char| char == '[' || char.is_ascii_lowercase());
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if is_setting(setting) => setting,
        _ => line,
    });
    let all: Vec<&str> = lines.collect();
    check_file(&all.join("\n")).unwrap();
    assert!(all.iter().filter(|line| is_setting(line)).count() > 30);
}

#[test]
fn what_a_line_names_is_looked_up() {
    let root = definition();
    for (line, expected) in [
        ("pmnet device --listen 127.0.0.1:51000 …", None),
        ("pmnet ctl --via HOST1:51000,HOST2:51000 add", None),
        ("pmnet ctl promote", None),
        ("pmnet ctl … --is-stopped", None),
        ("pmnet device --ports eth0", None),
        ("pmnet divice --listen 127.0.0.1:51000", Some("divice")),
        ("pmnet device --lisen 127.0.0.1:51000", Some("--lisen")),
        ("pmnet ctl --via … add --is-stoped", Some("--is-stoped")),
    ] {
        assert_eq!(unknown(&root, line).as_deref(), expected, "{line}");
    }
    assert_eq!(
        lines_of_pmnet("$ pmnet a \\\n  --b & \nexec pmnet c   # d\nredis-cli\n"),
        ["pmnet a    --b", "pmnet c"]
    );
}

/// Keys that the file accepts, although they count only on the command line.
const FLAGS_ONLY: &[&str] = &["detach", "discard", "new-slots"];

/// Returns the keys of a section. The program lists these keys when it refuses an unknown key.
fn keys(section: &str) -> Vec<String> {
    let refused = check_file(&format!("[{section}]\nno-such-key = 0\n")).unwrap_err();
    let text = refused.to_string();
    let (_, listed) = text
        .split_once("expected ")
        .unwrap_or_else(|| panic!("{text}"));
    let names = listed.split('`').skip(1).step_by(2);
    names
        .filter(|name| !FLAGS_ONLY.contains(name))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_key_is_listed() {
    let mut table = "| section | keys |\n|---|---|\n".to_owned();
    let root_command = definition();
    for section in ["run", "server", "device", "redis", "memcached"] {
        let keys = keys(section);
        let command = root_command.find_subcommand(section).unwrap();
        let mut known = BTreeSet::new();
        flags(command, &mut known);
        known.insert("requirepass");
        let strange: Vec<&String> = keys
            .iter()
            .filter(|key| !known.contains(key.as_str()))
            .collect();
        assert!(
            (keys.len() > 10 || section == "run") && strange.is_empty(),
            "[{section}]: {strange:?}"
        );
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| `[{section}]` | `{}` |", keys.join("`, `"));
    }
    let path = root().join("docs/reference/configuration.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let mark = "every_key_is_listed -->\n\n";
    let (before, there) = page
        .split_once(mark)
        .expect("the mark before the generated table");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{mark}{table}")).unwrap();
        return;
    }
    assert!(
        there == table,
        "{} does not list the keys (UPDATE=1 writes them):\n{table}",
        path.display()
    );
}
