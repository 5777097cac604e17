//! Checks the documentation. Every link leads to a file of the repository, and to a heading in it. Every page can be
//! reached from its index. Every `make` target, command line, flag and message that a page names exists.

mod alerts;
mod chart;
mod commands;
mod gaps;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The links of a page, the anchors of its headings, and its other anchors.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn read(text: &str) -> Page {
        let mut page = Page::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let title = heading.take().unwrap_or_default();
                    page.add_anchor(&anchor(&title));
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(title) = &mut heading {
                        title.push_str(&text);
                    }
                }
                Event::InlineHtml(html) => {
                    let named = html.strip_prefix("<a id=\"");
                    let named = named.and_then(|rest| rest.strip_suffix("\">"));
                    page.anchors.extend(named.map(str::to_owned));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                _ => {}
            }
        }
        page
    }

    /// If several headings have the same title, their anchors are numbered.
    fn add_anchor(&mut self, name: &str) {
        let numbered = (1..).map(|number| format!("{name}-{number}"));
        let mut names = std::iter::once(name.to_owned()).chain(numbered);
        let free = names.find(|name| !self.anchors.contains(name));
        self.anchors.extend(free);
    }
}

/// Returns the anchor that GitHub gives to a heading: lower case, hyphens instead of spaces, no punctuation.
fn anchor(title: &str) -> String {
    let kept = title.trim().chars().filter_map(|char| match char {
        ' ' => Some('-'),
        '-' | '_' => Some(char),
        _ => char.is_alphanumeric().then_some(char),
    });
    kept.collect::<String>().to_lowercase()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// Returns all pages of the root, of `docs` and of their folders, by path from the root.
fn pages() -> BTreeMap<PathBuf, String> {
    let root = root();
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(&root).unwrap().to_owned();
            if path.is_dir() {
                if inside.starts_with("docs") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.insert(inside, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    assert!(found.len() > 20, "{:?}", found.keys());
    found
}

/// Returns the path without `..`: `docs/use/../spec/wire.md` becomes `docs/spec/wire.md`. `None`: the path leads out of
/// the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => plain.pop().then_some(())?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

#[test]
fn every_link_leads_somewhere() {
    let texts = pages();
    let pages: BTreeMap<&Path, Page> = texts
        .iter()
        .map(|(path, text)| (path.as_path(), Page::read(text)))
        .collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (path, page) in &pages {
        for link in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                Some(path.to_path_buf())
            } else {
                plain(&path.parent().unwrap().join(file))
            };
            let leads = target.is_some_and(|target| {
                let there = root().join(&target).exists();
                let linked = pages.get(target.as_path());
                there
                    && (heading.is_empty()
                        || linked.is_some_and(|page| page.anchors.contains(heading)))
            });
            if !leads {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(count > 200, "{count}");
    assert!(
        wrong.is_empty(),
        "links that lead nowhere:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_page_is_in_the_index() {
    let texts = pages();
    let index = Path::new("docs/README.md");
    let listed: BTreeSet<PathBuf> = Page::read(&texts[index])
        .links
        .iter()
        .filter_map(|link| plain(&Path::new("docs").join(link.split('#').next()?)))
        .collect();
    let missing: Vec<&PathBuf> = texts
        .keys()
        .filter(|path| path.starts_with("docs") && path.as_path() != index)
        .filter(|path| !listed.contains(path.as_path()))
        .collect();
    assert!(missing.is_empty(), "not in docs/README.md: {missing:?}");
}

#[test]
fn every_make_target_that_is_named_exists() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.strip_prefix(".PHONY:"))
        .flat_map(str::split_whitespace)
        .collect();
    let mut wrong = Vec::new();
    for (path, text) in pages() {
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            let Event::Code(code) = event else { continue };
            let Some(rest) = code.strip_prefix("make ") else {
                continue;
            };
            // All words before the first variable are targets.
            let named = rest
                .split_whitespace()
                .take_while(|word| !word.contains('='));
            for target in named.filter(|target| !targets.contains(target)) {
                wrong.push(format!("{}: make {target}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_of_metrics_is_their_definitions() {
    let path = root().join("docs/reference/metrics.md");
    let page = pmnet::status::page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "{} is not what the program defines: UPDATE=1 cargo test -p pmnet --test docs the_page_of_metrics",
        path.display()
    );
}

#[test]
fn anchors_are_those_of_github() {
    for (title, expected) in [
        ("A chain that heals", "a-chain-that-heals"),
        ("`--assume-ok`", "--assume-ok"),
        ("3. Who may not be trusted", "3-who-may-not-be-trusted"),
        (
            "Past the kernel's network stack",
            "past-the-kernels-network-stack",
        ),
    ] {
        assert_eq!(anchor(title), expected);
    }
    let page = Page::read("# Same\n\n## Same\n\n[a](b.md#c) `[no](link)`\n");
    assert_eq!(page.links, ["b.md#c"]);
    assert_eq!(page.anchors.iter().collect::<Vec<_>>(), ["same", "same-1"]);
}
