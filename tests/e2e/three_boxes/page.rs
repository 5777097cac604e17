//! The commands of a page: fenced blocks of `sh` that say where they run.

/// One block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The box, or `each`.
    on: String,
    /// It runs for ever, and this is its name.
    pub service: Option<String>,
    /// The one on the first box prints this before the others begin.
    pub first: Option<String>,
    /// Its output contains this, sooner or later.
    pub expect: Option<String>,
    /// It copies this file from its box to the others.
    pub copies: Option<String>,
    /// It is for this moment; `None`: in the order of the page.
    pub when: Option<String>,
    pub text: String,
}

impl Block {
    pub fn is_on(&self, name: &str) -> bool {
        self.on == "each" || self.on == name
    }
}

/// All blocks of a page.
///
/// # Panics
/// A block of commands does not say where it runs, or says something unknown: it would not be tried.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let Some(words) = info.strip_prefix("sh") else {
            assert!(info.is_empty(), "what is a block of {info}?");
            continue;
        };
        let mut block = Block {
            text: text.join("\n"),
            ..Block::default()
        };
        for word in words.split_whitespace() {
            let (name, value) = word.split_once('=').expect(word);
            let value = value.to_owned();
            match name {
                "on" => block.on = value,
                "service" => block.service = Some(value),
                "first" => block.first = Some(value),
                "expect" => block.expect = Some(value),
                "copies" => block.copies = Some(value),
                "when" => block.when = Some(value),
                _ => panic!("{word}?"),
            }
        }
        assert!(!block.on.is_empty(), "where does this run? {info}");
        found.push(block);
    }
    assert!(found.len() > 10, "the page has hardly any commands");
    found
}
