//! Draws `latency.svg`: the SET latencies of one client, as one picture in one file.
//!
//! Purpose: a picture for a README. A picture in a README cannot use the style sheet of a page, so
//! the file has its own colours and legend. Colours and legend are readable on light and on dark
//! backgrounds.

use super::chart::{Series, WIDTH, cdf, escape};
use super::outcome::Outcome;
use super::plan::Plan;
use crate::load::Op;

const COLOURS: [&str; 8] = [
    "#0e8fa8", "#7b8494", "#d1661c", "#3b82e0", "#9659cf", "#b98a14", "#2f9c62", "#d1478a",
];
/// Height of a line of the legend.
const LINE: f64 = 18.0;
/// Height of the chart below the legend, in the units of the SVG.
const CHART: f64 = 300.0;

/// Returns the picture; `None` if no SET with one client was measured.
pub fn svg(plan: &Plan, outcome: &Outcome) -> Option<String> {
    let cells: Vec<_> = outcome
        .cells
        .iter()
        .filter(|cell| cell.operation == Op::Set && cell.clients == 1)
        .collect();
    if cells.is_empty() {
        return None;
    }
    let colour = |name: &str| {
        let index = plan.stacks.iter().position(|stack| stack.name == name);
        index.unwrap_or(0) % COLOURS.len()
    };
    let series: Vec<_> = cells
        .iter()
        .map(|cell| Series {
            name: cell.stack,
            points: &cell.cdf,
            colour: colour(cell.stack),
        })
        .collect();
    let title = "SET, one client: part of the calls that took at most so long";
    let legend = LINE * f64::from(u32::try_from(cells.len() + 1).unwrap_or(u32::MAX)) + 8.0;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<style>.grid {{ stroke:#8a919b; stroke-opacity:.35 }} \
         .tick {{ fill:#8a919b; font-size:12px }} polyline {{ fill:none; stroke-width:2 }}",
        legend + CHART
    );
    for (index, colour) in COLOURS.iter().enumerate() {
        picture += &format!(" .s{index} {{ stroke:{colour} }}");
    }
    picture += &format!(
        "</style>\n<text x=\"8\" y=\"{LINE}\" fill=\"#8a919b\" font-weight=\"bold\">{}</text>\n",
        escape(title)
    );
    let mut y = LINE;
    for cell in &cells {
        y += LINE;
        let colour = COLOURS[colour(cell.stack)];
        picture += &format!(
            "<rect x=\"8\" y=\"{:.0}\" width=\"11\" height=\"11\" fill=\"{colour}\"/><text x=\"26\" y=\"{y:.0}\" \
             fill=\"{colour}\">{}: p50 {:.0} µs, p99 {:.0} µs</text>\n",
            y - 10.0,
            escape(cell.stack),
            cell.p50_us,
            cell.p99_us
        );
    }
    picture += &format!(
        "<svg y=\"{legend:.0}\" width=\"{WIDTH}\" height=\"{CHART}\">\n{}</svg>\n</svg>\n",
        cdf(title, &series)
    );
    Some(picture)
}
