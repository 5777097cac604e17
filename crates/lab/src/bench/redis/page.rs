//! The page `redis.html`.

use super::measure::Cell;
use super::outcome::Outcome;
use super::pairs::PairsCell;
use super::plan::{Plan, Row};
use super::table::{cpu, p50, times, unfinished};
use crate::bench::page::{COLOURS, page};
use crate::demo::chart::{Series, cdf, escape};

/// Returns the page as HTML.
pub fn html(plan: &Plan, outcome: &Outcome) -> String {
    let mut content: String = outcome
        .groups()
        .map(|cells| section(plan, &outcome.title, cells))
        .collect();
    content += &pairs(plan, &outcome.pairs);
    let mut notes = outcome.notes.clone();
    for refused in &outcome.refused {
        notes.push(format!(
            "not to be had: {}: {}",
            refused.row.name(),
            refused.reason
        ));
    }
    for counts in &outcome.fronts {
        let parts = counts.counts.iter();
        let parts: Vec<String> = parts
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let title = counts.row.title(plan.medium);
        notes.push(format!(
            "the front of {title} counted: {}",
            parts.join(", ")
        ));
    }
    page("pmnet-lab bench redis", &outcome.title, &content, &notes)
}

/// Returns the number of a row's colour. A row has the same colour in all charts.
fn colour(plan: &Plan, row: Row) -> usize {
    let position = plan.rows.iter().position(|other| *other == row);
    position.unwrap_or(0) % COLOURS
}

fn name(plan: &Plan, row: Row, title: &str) -> String {
    format!(
        "<span class=\"key k{}\"></span>{}",
        colour(plan, row),
        escape(title)
    )
}

fn section(plan: &Plan, title: &str, cells: &[Cell]) -> String {
    let Some(first) = cells.first() else {
        return String::new();
    };
    let heading = format!("{}, {} client(s)", first.reads.title(), first.clients);
    let series: Vec<_> = cells
        .iter()
        .map(|cell| Series {
            name: &cell.title,
            points: &cell.cdf,
            colour: colour(plan, cell.row),
        })
        .collect();
    let mut html = format!(
        "<h2>{}</h2>\n{}<div class=\"scroll\"><table>\n<tr><th>set-up</th><th>ops/s</th><th>p50 µs</th>\
         <th>p99 µs</th><th>p99.9 µs</th><th>lower</th><th>of limit</th><th>SET p50</th><th>GET p50</th>\
         <th>drain ms</th><th>p50 of the rounds</th></tr>\n",
        escape(&heading),
        cdf(&format!("{title}; {heading}"), &series)
    );
    for cell in cells {
        let rounds: Vec<_> = cell
            .rounds_p50_us
            .iter()
            .map(|p50| format!("{p50:.0}"))
            .collect();
        let mut name = name(plan, cell.row, &cell.title);
        name += &format!("<br><small>CPU µs: {}</small>", escape(&cpu(&cell.cpu_us)));
        name += &errors(cell.errors, cell.first_error.as_deref());
        html += &format!(
            "<tr><td>{name}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{:.0}</td><td>{}</td></tr>\n",
            cell.throughput,
            cell.all.p50_us,
            cell.all.p99_us,
            cell.all.p999_us,
            times(cell.lower),
            times(cell.of_limit),
            p50(cell, "set"),
            p50(cell, "get"),
            cell.drain_ms,
            rounds.join(" ")
        );
    }
    html + "</table></div>\n"
}

fn pairs(plan: &Plan, cells: &[PairsCell]) -> String {
    let Some(first) = cells.first() else {
        return String::new();
    };
    let mut html = format!(
        "<h2>A pipeline of {} pairs of SET and GET of the same key, one connection, until the last reply</h2>\n\
         <div class=\"scroll\"><table>\n<tr><th>set-up</th><th>ms</th><th>pairs/s</th><th>ms of the rounds</th></tr>\n",
        first.pairs
    );
    for cell in cells {
        let rounds: Vec<_> = cell.rounds_ms.iter().map(|ms| format!("{ms:.1}")).collect();
        let mut name = name(plan, cell.row, &cell.title);
        if cell.unfinished > 0 {
            name += &format!("<br><small>{}</small>", unfinished(cell));
        }
        name += &format!("<br><small>CPU µs: {}</small>", escape(&cpu(&cell.cpu_us)));
        name += &errors(cell.errors, cell.first_error.as_deref());
        html += &format!(
            "<tr><td>{name}</td><td>{:.1}</td><td>{:.0}</td><td>{}</td></tr>\n",
            cell.ms,
            cell.per_second(),
            rounds.join(" ")
        );
    }
    html + "</table></div>\n"
}

fn errors(count: u64, first: Option<&str>) -> String {
    if count == 0 {
        return String::new();
    }
    let first = first.map_or_else(String::new, |first| format!(", such as: {first}"));
    let text = format!("{count} failed or stayed unknown{first}");
    format!("<br><small>{}</small>", escape(&text))
}
