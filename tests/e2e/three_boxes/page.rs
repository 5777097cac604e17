//! The commands of a page. The commands are in fenced blocks of `sh` that name the machine on which
//! they run.

/// One block of commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The name of the machine, or `each`.
    on: String,
    /// The name of the service, if the command does not end by itself.
    pub service: Option<String>,
    /// The text that the service on the first machine must print before the other machines begin.
    pub first: Option<String>,
    /// The text that the output must contain, at once or after a while.
    pub expect: Option<String>,
    /// The file that the test copies from this machine to the other machines.
    pub copies: Option<String>,
    /// The moment at which the block must be run; `None`: when its turn on the page comes.
    pub when: Option<String>,
    pub text: String,
}

impl Block {
    pub fn is_on(&self, name: &str) -> bool {
        self.on == "each" || self.on == name
    }
}

/// Returns all blocks of a page.
///
/// # Panics
/// A block of commands names no machine, or has an unknown attribute. The block would not be
/// tested.
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
