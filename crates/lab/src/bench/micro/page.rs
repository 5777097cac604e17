//! `micro.html`: one file, no scripts, nothing loaded from elsewhere.

use super::measure::{Cell, Outcome};
use super::table::times;
use crate::demo::chart::{Series, cdf, escape};

const STYLE: &str = "
:root { --page:#fff; --ink:#1d2129; --soft:#5d6570; --line:#e3e6ea;
  --c0:#6b7280; --c1:#c2570c; --c2:#a16207; --c3:#1d63c8; --c4:#7a3fb0; --c5:#157347;
  --c6:#b01e6b; --c7:#0e7490; }
@media (prefers-color-scheme: dark) { :root { --page:#15181d; --ink:#e8eaed; --soft:#a0a7b1; --line:#2e343c;
  --c0:#9aa3af; --c1:#f19a57; --c2:#e3c04a; --c3:#74aaff; --c4:#c49bf0; --c5:#5fce96;
  --c6:#f48fc3; --c7:#5cd0e6; } }
* { box-sizing: border-box; }
body { margin:0 auto; padding:2rem 1rem 4rem; max-width:62rem; background:var(--page);
  color:var(--ink); font:16px/1.5 system-ui, sans-serif; }
h1 { font-size:1.4rem; margin:0 0 .3rem; } h2 { font-size:1.1rem; margin:2.2rem 0 .4rem; }
li, small { color:var(--soft); }
.scroll { overflow-x:auto; } table { border-collapse:collapse; width:100%; font-size:.92rem;
  font-variant-numeric:tabular-nums; }
th, td { padding:.3rem .6rem; border-bottom:1px solid var(--line); text-align:right; white-space:nowrap; }
th:first-child, td:first-child { text-align:left; } th { color:var(--soft); font-weight:500; }
svg { width:100%; height:auto; display:block; margin:.4rem 0; }
.grid { stroke:var(--line); stroke-width:1; } .tick { fill:var(--soft); font-size:12px; }
polyline { fill:none; stroke-width:2; stroke-linejoin:round; }
.key { display:inline-block; width:.8rem; height:.8rem; border-radius:2px; margin-right:.5rem; vertical-align:-1px; }
";
/// Colours of the style.
const COLOURS: usize = 8;

/// The page.
pub fn html(outcome: &Outcome) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>pmnet-lab bench micro</title>\n<style>{STYLE}"
    );
    for colour in 0..COLOURS {
        page += &format!(
            ".s{colour} {{ stroke:var(--c{colour}); }} .k{colour} {{ background:var(--c{colour}); }}\n"
        );
    }
    page += &format!(
        "</style>\n</head>\n<body>\n<h1>{}</h1>\n",
        escape(&outcome.title)
    );
    let group = |cell: &Cell| (cell.payload_bytes, cell.clients, cell.client_io);
    let same = |a: &Cell, b: &Cell| group(a) == group(b);
    for cells in outcome.cells.chunk_by(same) {
        page += &section(&outcome.title, cells);
    }
    page += "<h2>Notes</h2>\n<ul>\n";
    for note in &outcome.notes {
        page += &format!("<li>{}</li>\n", escape(note));
    }
    page + "</ul>\n</body>\n</html>\n"
}

fn section(title: &str, cells: &[Cell]) -> String {
    let Some(first) = cells.first() else {
        return String::new();
    };
    let names: Vec<_> = cells.iter().map(|cell| cell.title.as_str()).collect();
    let heading = format!(
        "{} B, {} {}(s): {}",
        first.payload_bytes,
        first.clients,
        first.client_io.title(),
        names.join("; ")
    );
    let series: Vec<_> = cells
        .iter()
        .enumerate()
        .map(|(index, cell)| Series {
            name: &cell.title,
            points: &cell.cdf,
            colour: index % COLOURS,
        })
        .collect();
    let mut html = format!(
        "<h2>{}</h2>\n{}<div class=\"scroll\"><table>\n<tr><th>system</th><th>updates/s</th><th>p50 µs</th>\
         <th>p99 µs</th><th>p99.9 µs</th><th>faster</th><th>of limit</th><th>p50 of the rounds</th></tr>\n",
        escape(&heading),
        cdf(&format!("{title}; {heading}"), &series)
    );
    for (index, cell) in cells.iter().enumerate() {
        let rounds: Vec<_> = cell
            .rounds_p50_us
            .iter()
            .map(|p50| format!("{p50:.2}"))
            .collect();
        let mut name = escape(&cell.title);
        if !cell.troubles.none() {
            name += &format!("<br><small>{}</small>", escape(&cell.troubles.to_string()));
        }
        html += &format!(
            "<tr><td><span class=\"key k{}\"></span>{name}</td><td>{:.0}</td><td>{:.2}</td><td>{:.2}</td>\
             <td>{:.2}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            index % COLOURS,
            cell.throughput,
            cell.p50_us,
            cell.p99_us,
            cell.p999_us,
            times(cell.faster),
            times(cell.of_limit),
            rounds.join(" ")
        );
    }
    html + "</table></div>\n"
}
