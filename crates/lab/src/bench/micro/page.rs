//! The page `micro.html`.

use super::measure::{Cell, Outcome};
use super::table::{group, name, times};
use crate::bench::page::{COLOURS, page};
use crate::demo::chart::{Series, cdf, escape};

/// Returns the page as HTML.
pub fn html(outcome: &Outcome) -> String {
    let same = |a: &Cell, b: &Cell| group(a) == group(b);
    let sections = outcome.cells.chunk_by(same);
    let sections: String = sections
        .map(|cells| section(&outcome.title, cells))
        .collect();
    page(
        "pmnet-lab bench micro",
        &outcome.title,
        &sections,
        &outcome.notes,
    )
}

fn section(title: &str, cells: &[Cell]) -> String {
    let Some(first) = cells.first() else {
        return String::new();
    };
    let names: Vec<_> = cells.iter().map(name).collect();
    let heading = format!("{}: {}", group(first), names.join("; "));
    let series: Vec<_> = cells
        .iter()
        .enumerate()
        .map(|(index, cell)| Series {
            name: &names[index],
            points: &cell.cdf,
            colour: index % COLOURS,
        })
        .collect();
    let mut html = format!(
        "<h2>{}</h2>\n{}<div class=\"scroll\"><table>\n<tr><th>system</th><th>updates/s</th><th>p50 µs</th>\
         <th>p99 µs</th><th>p99.9 µs</th><th>faster</th><th>of limit</th><th>of Rust</th><th>p50 of the rounds</th></tr>\n",
        escape(&heading),
        cdf(&format!("{title}; {heading}"), &series)
    );
    for (index, cell) in cells.iter().enumerate() {
        let rounds: Vec<_> = cell
            .rounds_p50_us
            .iter()
            .map(|p50| format!("{p50:.2}"))
            .collect();
        let mut name = escape(&names[index]);
        if !cell.troubles.none() {
            name += &format!("<br><small>{}</small>", escape(&cell.troubles.to_string()));
        }
        html += &format!(
            "<tr><td><span class=\"key k{}\"></span>{name}</td><td>{:.0}</td><td>{:.2}</td><td>{:.2}</td>\
             <td>{:.2}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            index % COLOURS,
            cell.throughput,
            cell.p50_us,
            cell.p99_us,
            cell.p999_us,
            times(cell.faster),
            times(cell.of_limit),
            times(cell.of_rust),
            rounds.join(" ")
        );
    }
    html + "</table></div>\n"
}
