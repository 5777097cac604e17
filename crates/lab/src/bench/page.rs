//! The parts that the pages of all benchmarks share. Each page is one file without scripts, and loads nothing.

use crate::demo::chart::{self, escape};

const STYLE: &str = "
:root { --page:#fff; --ink:#1d2129; --soft:#5d6570; --line:#e3e6ea;
  --c0:#6b7280; --c1:#c2570c; --c2:#a16207; --c3:#1d63c8; --c4:#7a3fb0; --c5:#157347;
  --c6:#b01e6b; --c7:#0e7490; --c8:#8a5a2b; --c9:#4f46e5; --c10:#5f7d1e; --c11:#a83232; }
@media (prefers-color-scheme: dark) { :root { --page:#15181d; --ink:#e8eaed; --soft:#a0a7b1; --line:#2e343c;
  --c0:#9aa3af; --c1:#f19a57; --c2:#e3c04a; --c3:#74aaff; --c4:#c49bf0; --c5:#5fce96;
  --c6:#f48fc3; --c7:#5cd0e6; --c8:#d3a574; --c9:#a5a1ff; --c10:#b7d66a; --c11:#ff9a94; } }
h1 { font-size:1.4rem; margin:0 0 .3rem; } h2 { font-size:1.1rem; margin:2.2rem 0 .4rem; }
li, small { color:var(--soft); }
";
/// Number of colours in the style sheet. Line number N has class `sN`, and its entry in the legend has class `kN`.
pub const COLOURS: usize = 12;

/// Returns an HTML page with this content. The notes stand at its end.
pub fn page(name: &str, heading: &str, content: &str, notes: &[String]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>{}{STYLE}",
        escape(name),
        chart::STYLE
    );
    for colour in 0..COLOURS {
        page += &format!(
            ".s{colour} {{ stroke:var(--c{colour}); }} .k{colour} {{ background:var(--c{colour}); }}\n"
        );
    }
    page += &format!(
        "</style>\n</head>\n<body>\n<h1>{}</h1>\n{content}<h2>Notes</h2>\n<ul>\n",
        escape(heading)
    );
    for note in notes {
        page += &format!("<li>{}</li>\n", escape(note));
    }
    page + "</ul>\n</body>\n</html>\n"
}
