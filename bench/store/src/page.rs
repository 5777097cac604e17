//! Makes the report page `store.html`. The page has no scripts, and loads no other file.

use crate::engines::Engine;
use crate::measure::{Row, heading};
use crate::report::{HEADS, Outcome, figures, micros};

const STYLE: &str = "
:root { --page:#fff; --ink:#1d2129; --soft:#5d6570; --line:#e3e6ea; --own:#1d63c8; --other:#6b7280; }
@media (prefers-color-scheme: dark) { :root { --page:#15181d; --ink:#e8eaed; --soft:#a0a7b1; --line:#2e343c;
  --own:#74aaff; --other:#9aa3af; } }
body { margin:0 auto; padding:2rem 1rem 4rem; max-width:74rem; background:var(--page); color:var(--ink);
  font:16px/1.5 system-ui, sans-serif; }
h1 { font-size:1.4rem; } h2 { font-size:1.1rem; margin:2.2rem 0 .4rem; } li { color:var(--soft); }
.scroll { overflow-x:auto; } table { border-collapse:collapse; width:100%; font-size:.88rem; font-variant-numeric:tabular-nums; }
th, td { padding:.25rem .5rem; border-bottom:1px solid var(--line); text-align:right; white-space:nowrap; }
th:first-child, td:first-child { text-align:left; } th { color:var(--soft); font-weight:500; }
svg { width:100%; height:auto; display:block; margin:.4rem 0; } text { fill:var(--soft); font-size:12px; }
";
/// Sizes of the parts of a chart, in units of the SVG.
const WIDTH: f64 = 720.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 110.0;
const BAR: f64 = 14.0;
const GAP: f64 = 3.0;

/// Returns the page.
#[must_use]
pub fn html(outcome: &Outcome) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>bench store</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{}</h1>\n",
        escape(&outcome.title)
    );
    if let Some(breakdown) = &outcome.breakdown {
        html += "<h2>Where the time of a 1 KB put goes, µs</h2>\n<table>\n<tr><th>overhead</th><th>operation</th>\
                 <th>published</th><th>usual</th><th>packets</th></tr>\n";
        for line in &breakdown.lines {
            html += &format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                line.overhead,
                line.operation,
                micros(line.published),
                micros(line.usual),
                micros(line.packets)
            );
        }
        html += "</table>\n";
    }
    for cell in outcome.rows.chunk_by(|a, b| a.cell == b.cell) {
        html += &section(cell);
    }
    html += "<h2>What is asked</h2>\n<table>\n<tr><th>what</th><th>measured</th><th>at most</th><th></th></tr>\n";
    for goal in &outcome.goals {
        html += &format!(
            "<tr><td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{}</td></tr>\n",
            escape(&goal.words),
            goal.figure,
            goal.bound,
            if goal.reached { "reached" } else { "missed" }
        );
    }
    html += "</table>\n<h2>Notes</h2>\n<ul>\n";
    for note in &outcome.notes {
        html += &format!("<li>{}</li>\n", escape(note));
    }
    html + "</ul>\n</body>\n</html>\n"
}

fn section(cell: &[Row]) -> String {
    let mut html = format!("<h2>{}</h2>\n", escape(&heading(&cell[0].cell)));
    html += &bars("puts a second", cell, &|row| row.median.put.per_second);
    html += &bars("gets a second", cell, &|row| row.median.get.per_second);
    html += "<div class=\"scroll\"><table>\n<tr><th></th>";
    for head in HEADS {
        html += &format!("<th>{head}</th>");
    }
    html += "</tr>\n";
    for row in cell {
        html += &format!("<tr><td>{}</td>", row.engine.name());
        for figure in figures(row) {
            html += &format!("<td>{figure}</td>");
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}

fn bars(title: &str, cell: &[Row], figure: &dyn Fn(&Row) -> f64) -> String {
    let most = cell.iter().map(figure).fold(f64::MIN_POSITIVE, f64::max);
    let mut at = 20.0;
    let mut drawn = String::new();
    for row in cell {
        let (value, middle) = (figure(row), at + BAR - 3.0);
        let width = (WIDTH - LEFT - RIGHT) * value / most;
        let colour = match row.engine {
            Engine::Packet => "own",
            _ => "other",
        };
        drawn += &format!(
            "<text x=\"{:.0}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{at:.1}\" width=\"{width:.1}\" height=\"{BAR}\" style=\"fill:var(--{colour})\"/>\
             <text x=\"{:.1}\" y=\"{middle:.1}\">{value:.0}</text>\n",
            LEFT - 8.0,
            row.engine.name(),
            LEFT + width + 6.0
        );
        at += BAR + GAP;
    }
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {at:.0}\" role=\"img\" aria-label=\"{title}\">\n\
         <text x=\"{LEFT}\" y=\"12\">{title}</text>\n{drawn}</svg>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
