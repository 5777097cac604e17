//! `report.html`: one file without scripts, which loads nothing.

use super::chart::{self, Series, cdf, escape};
use super::outcome::{Cell, Outcome};
use super::plan::Plan;
use super::table::{base, ratio};

const STYLE: &str = "
:root { --page:#fff; --ink:#1d2129; --soft:#5d6570; --line:#e3e6ea; --good:#157347; --bad:#b3261e;
  --c0:#0e7490; --c1:#6b7280; --c2:#c2570c; --c3:#1d63c8; --c4:#7a3fb0; --c5:#a16207; --c6:#157347;
  --c7:#b01e6b; }
@media (prefers-color-scheme: dark) { :root { --page:#15181d; --ink:#e8eaed; --soft:#a0a7b1;
  --line:#2e343c; --good:#5fce96; --bad:#ff8a80; --c0:#5cd0e6; --c1:#9aa3af; --c2:#f19a57; --c3:#74aaff;
  --c4:#c49bf0; --c5:#e3c04a; --c6:#5fce96; --c7:#f48fc3; } }
h1 { font-size:1.6rem; margin:0 0 .3rem; } h2 { font-size:1.15rem; margin:2.4rem 0 .4rem; }
p, li { color:var(--soft); } .verdict { font-size:1.15rem; font-weight:600; }
.good { color:var(--good); } .bad { color:var(--bad); }
";

/// Returns the page as HTML.
pub fn html(plan: &Plan, outcome: &Outcome) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>pmnet-lab demo</title>\n<style>",
    );
    page += chart::STYLE;
    page += STYLE;
    for colour in 0..plan.stacks.len() {
        page += &format!(
            ".s{colour} {{ stroke:var(--c{colour}); }} .k{colour} {{ background:var(--c{colour}); }}\n"
        );
    }
    page += "</style>\n</head>\n<body>\n<h1>pmnet on this machine</h1>\n";
    page += &verdict(outcome);
    for operation in &plan.operations {
        for clients in &plan.clients {
            let cells: Vec<_> = outcome
                .cells
                .iter()
                .filter(|cell| cell.operation == *operation && cell.clients == *clients)
                .collect();
            page += &section(plan, outcome, &cells);
        }
    }
    page += &cpu(plan, outcome);
    page += "<h2>Notes</h2>\n<ul>\n";
    for note in &outcome.notes {
        page += &format!("<li>{}</li>\n", escape(note));
    }
    page += "<li>DRAM: an acknowledged write survives the death of every process, not a power cut \
             (unless the memory is battery-backed). file: O_DIRECT and O_DSYNC, it survives a power \
             cut. R: number of devices that hold a write before it is acknowledged; here all of \
             them are processes of one machine.</li>\n\
             <li>Closed loop, 100-byte values, 10,000 keys; the stacks are measured in turn, \
             figures are medians over the rounds. drain: from the \
             end of the load until all of it was in the database (its CPU time is counted). bench: redis-benchmark with the same \
             settings.</li>\n</ul>\n</body>\n</html>\n";
    page
}

fn verdict(outcome: &Outcome) -> String {
    let verdict = &outcome.verdict;
    let (class, text) = if verdict.is_clean() {
        (
            "good",
            "Nothing lost, nothing applied twice, nothing out of order.",
        )
    } else {
        ("bad", "Violation: an acknowledged write was not honoured.")
    };
    let kills: Vec<_> = outcome
        .kills
        .iter()
        .map(|(role, count)| format!("{role} {count}×"))
        .collect();
    let mut html = format!(
        "<p class=\"verdict {class}\">{text}</p>\n<p>Checked load (R = 1, DRAM) while processes were \
         killed with kill -9: {}. The longest call took {:.0} ms.</p>\n\
         <div class=\"scroll\"><table>\n<tr><th>operations</th><th>acknowledged</th><th>refused</th>\
         <th>unknown</th><th>lost</th><th>twice</th><th>out of order</th><th>invented</th>\
         <th>shared locks</th></tr>\n<tr><td></td>",
        escape(&kills.join(", ")),
        outcome.longest_call_ms
    );
    for number in [
        verdict.acknowledged,
        verdict.failed,
        verdict.unknown,
        verdict.lost,
        verdict.twice,
        verdict.out_of_order,
        verdict.invented,
        verdict.shared_locks,
    ] {
        html += &format!("<td>{number}</td>");
    }
    html += "</tr>\n</table></div>\n";
    if !verdict.details.is_empty() {
        html += "<ul>\n";
        for detail in &verdict.details {
            html += &format!("<li class=\"bad\">{}</li>\n", escape(detail));
        }
        html += "</ul>\n";
    }
    html
}

fn colour(plan: &Plan, cell: &Cell) -> usize {
    plan.stacks
        .iter()
        .position(|stack| stack.name == cell.stack)
        .unwrap_or(0)
}

fn section(plan: &Plan, outcome: &Outcome, cells: &[&Cell]) -> String {
    let Some(first) = cells.first() else {
        return String::new();
    };
    let plural = if first.clients == 1 { "" } else { "s" };
    let names: Vec<_> = cells.iter().map(|cell| cell.stack).collect();
    let title = format!(
        "{}, {} client{plural}: {}",
        first.operation.name().to_uppercase(),
        first.clients,
        names.join("; ")
    );
    let series: Vec<_> = cells
        .iter()
        .map(|cell| Series {
            name: cell.stack,
            points: &cell.cdf,
            colour: colour(plan, cell),
        })
        .collect();
    let mut html = format!("<h2>{}</h2>\n{}", escape(&title), cdf(&title, &series));
    html += "<div class=\"scroll\"><table>\n<tr><th>set-up</th><th>ops/s</th><th>p50 µs</th>\
             <th>p95 µs</th><th>p99 µs</th><th>p50 lower</th><th>p99 lower</th><th>drain ms</th><th>bench ops/s</th>\
             <th>bench p50 µs</th><th>bench p99 µs</th></tr>\n";
    for cell in cells {
        let base = base(plan, outcome, cell);
        let bench = cell.benchmark.as_ref().map_or_else(
            || "<td>–</td><td>–</td><td>–</td>".to_owned(),
            |row| {
                format!(
                    "<td>{:.0}</td><td>{:.0}</td><td>{:.0}</td>",
                    row.throughput, row.p50_us, row.p99_us
                )
            },
        );
        html += &format!(
            "<tr><td><span class=\"key k{}\"></span>{}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td>\
             <td>{:.0}</td><td>{}</td><td>{}</td><td>{:.0}</td>{bench}</tr>\n",
            colour(plan, cell),
            escape(cell.stack),
            cell.throughput,
            cell.p50_us,
            cell.p95_us,
            cell.p99_us,
            ratio(base.map(|base| base.p50_us), cell.p50_us),
            ratio(base.map(|base| base.p99_us), cell.p99_us),
            cell.drain_ms,
        );
    }
    html + "</table></div>\n"
}

fn cpu(plan: &Plan, outcome: &Outcome) -> String {
    let mut html = String::from(
        "<h2>CPU time per operation and process, µs</h2>\n<div class=\"scroll\"><table>\n\
         <tr><th>set-up</th><th>operation</th><th>clients</th><th>total</th><th>where it goes</th></tr>\n",
    );
    for cell in &outcome.cells {
        let total: f64 = cell.cpu_us.iter().map(|(_, micros)| micros).sum();
        let parts: Vec<_> = cell
            .cpu_us
            .iter()
            .map(|(name, micros)| format!("{name} {micros:.1}"))
            .collect();
        html += &format!(
            "<tr><td><span class=\"key k{}\"></span>{}</td><td>{}</td><td>{}</td><td>{total:.1}</td>\
             <td>{}</td></tr>\n",
            colour(plan, cell),
            escape(cell.stack),
            cell.operation.name().to_uppercase(),
            cell.clients,
            escape(&parts.join(", "))
        );
    }
    html + "</table></div>\n"
}
