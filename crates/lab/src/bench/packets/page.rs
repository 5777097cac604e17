//! The page `packets.html`, with three bars for each request size.

use super::measure::{Cell, Outcome};
use super::plan::Store;
use super::table::{nanos, percent};
use crate::bench::page::page;
use crate::demo::chart::{WIDTH, escape};

/// Height of a bar, and of the space between two bars, in the chart's units.
const BAR: f64 = 14.0;
const GAP: f64 = 3.0;
/// Width of the labels on the left, and of a number after a bar, in the chart's units.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 120.0;

/// Returns the page as HTML.
pub fn html(outcome: &Outcome) -> String {
    let same = |a: &Cell, b: &Cell| a.group() == b.group();
    let part = |cell: &Cell| (cell.place, cell.queues, cell.in_flight);
    let mut content = String::new();
    let mut parts = Vec::new();
    for cell in &outcome.cells {
        if !parts.contains(&part(cell)) {
            parts.push(part(cell));
        }
    }
    for wanted in parts {
        let cells: Vec<Cell> = outcome
            .cells
            .iter()
            .filter(|cell| part(cell) == wanted)
            .cloned()
            .collect();
        let groups: Vec<&[Cell]> = cells.chunk_by(same).collect();
        content += &section(wanted.0.title(), wanted.1, wanted.2, &groups);
    }
    page(
        "pmnet-lab bench packets",
        &outcome.title,
        &content,
        &outcome.notes,
    )
}

const fn colour(store: Store) -> usize {
    match store {
        Store::Nothing => 0,
        Store::Copied => 1,
        Store::Buffers => 3,
    }
}

fn section(place: &str, queues: usize, in_flight: usize, groups: &[&[Cell]]) -> String {
    let heading = format!(
        "{place}; {queues} queue(s), {} requests on their way",
        in_flight * queues
    );
    let mut html = format!("<h2>{}</h2>\n", escape(&heading));
    html += &bars("Requests a second", groups, &|cell| cell.throughput, 0);
    html += &bars("Round trip, p50, µs", groups, &|cell| cell.p50_us, 2);
    html += "<div class=\"scroll\"><table>\n<tr><th>request</th><th>stored</th><th>requests/s</th><th>p50 µs</th>\
             <th>p99 µs</th><th>server ns</th><th>storing ns</th><th>burst</th><th>throughput</th><th>p50</th><th>requests/s of the rounds</th></tr>\n";
    for cell in groups.iter().flat_map(|group| group.iter()) {
        let rounds: Vec<_> = cell.rounds.iter().map(|one| format!("{one:.0}")).collect();
        html += &format!(
            "<tr><td>{} B</td><td><span class=\"key k{}\"></span>{}</td><td>{:.0}</td><td>{:.2}</td><td>{:.2}</td>\
             <td>{:.0}</td><td>{}</td><td>{:.1}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            cell.payload_bytes,
            colour(cell.store),
            cell.store.name(),
            cell.throughput,
            cell.p50_us,
            cell.p99_us,
            cell.server_ns,
            nanos(cell.storing_ns),
            cell.burst,
            percent(cell.more_throughput, '+'),
            percent(cell.less_latency, '−'),
            rounds.join(" ")
        );
    }
    html + "</table></div>\n"
}

/// Returns a bar chart of one figure.
fn bars(title: &str, groups: &[&[Cell]], figure: &dyn Fn(&Cell) -> f64, digits: usize) -> String {
    let cells = || groups.iter().flat_map(|group| group.iter());
    let most = cells().map(figure).fold(f64::MIN_POSITIVE, f64::max);
    let mut at = 20.0;
    let mut drawn = String::new();
    for group in groups {
        for (index, cell) in group.iter().enumerate() {
            let (value, middle) = (figure(cell), at + BAR - 3.0);
            let width = (WIDTH - LEFT - RIGHT) * value / most;
            let name = if index == 0 {
                format!("{} B, {}", cell.payload_bytes, cell.store.name())
            } else {
                cell.store.name().to_owned()
            };
            drawn += &format!(
                "<text class=\"tick\" x=\"{:.0}\" y=\"{middle:.1}\" text-anchor=\"end\">{name}</text>\
                 <rect x=\"{LEFT}\" y=\"{at:.1}\" width=\"{width:.1}\" height=\"{BAR}\" style=\"fill:var(--c{})\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{middle:.1}\">{value:.digits$}</text>\n",
                LEFT - 8.0,
                colour(cell.store),
                LEFT + width + 6.0
            );
            at += BAR + GAP;
        }
        at += 3.0 * GAP;
    }
    let title = escape(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {at:.0}\" role=\"img\" aria-label=\"{title}\">\n\
         <text class=\"tick\" x=\"{LEFT}\" y=\"12\">{title}</text>\n{drawn}</svg>\n"
    )
}
