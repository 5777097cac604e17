//! The tables of `pmnet top`. Each role has a table with columns of its own.

use super::model::Loop;

/// A column of a table.
pub struct Column {
    pub title: &'static str,
    /// If the table is too wide, the columns with the highest rank are left out first.
    pub rank: u8,
    /// The column has text, which is aligned to the left. Numbers are aligned to the right.
    pub is_text: bool,
    /// The column is left out if it is empty in all rows.
    pub may_be_missing: bool,
    pub cell: fn(&Loop<'_>) -> String,
}

/// The table of a role.
pub struct Table {
    pub title: &'static str,
    /// A metric that exactly the loops of this role have.
    pub has: &'static str,
    pub columns: &'static [Column],
    /// The value by which rows are sorted if the order is by rate.
    pub rate: fn(&Loop<'_>) -> Option<f64>,
    pub latency: fn(&Loop<'_>) -> Option<f64>,
    pub behind: fn(&Loop<'_>) -> Option<f64>,
}

const fn number(title: &'static str, rank: u8, cell: fn(&Loop<'_>) -> String) -> Column {
    Column {
        title,
        rank,
        is_text: false,
        may_be_missing: false,
        cell,
    }
}

const fn text(title: &'static str, rank: u8, cell: fn(&Loop<'_>) -> String) -> Column {
    Column {
        is_text: true,
        ..number(title, rank, cell)
    }
}

const fn if_some(title: &'static str, rank: u8, cell: fn(&Loop<'_>) -> String) -> Column {
    Column {
        may_be_missing: true,
        ..text(title, rank, cell)
    }
}

/// Returns a rate as text; `-` if there is none.
fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), short)
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.1}M", value / 1e6),
        value if value >= 1e4 => format!("{:.1}k", value / 1e3),
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Returns a time as text; `-` if there is none.
fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".into(),
        Some(seconds) if seconds >= 1.0 => format!("{seconds:.1}s"),
        Some(seconds) if seconds >= 1e-3 => format!("{:.1}ms", seconds * 1e3),
        Some(seconds) => format!("{:.0}us", seconds * 1e6),
    }
}

fn seconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}s"))
}

fn count(one: &Loop<'_>, metric: &str) -> String {
    one.number(metric, "").map_or_else(|| "-".into(), short)
}

fn copies(one: &Loop<'_>, has: &str, wanted: &str) -> String {
    format!("{}/{}", count(one, has), count(one, wanted))
}

/// Maximum length of an address that is shown in full, in characters.
const PLACE_MAX: usize = 32;

fn place(one: &Loop<'_>) -> String {
    let length = one.place.chars().count();
    if length <= PLACE_MAX {
        return one.place.to_owned();
    }
    let rest = one.place.chars().skip(length - PLACE_MAX + 1);
    std::iter::once('…').chain(rest).collect()
}

fn state(one: &Loop<'_>) -> String {
    let state = match (one.is_alive(), one.is_ready()) {
        (false, _) => "STUCK",
        (true, false) => "NOT READY",
        (true, true) => "ready",
    };
    state.into()
}

const AT: Column = text("at", 0, place);
const SECTION: Column = if_some("section", 4, |one| one.label("section"));
const SHARD: Column = number("shard", 3, |one| one.label("shard"));
const STATE: Column = text("state", 1, state);

const CALL: &str = "pmnet_front_call_seconds";
const ACKNOWLEDGED: &str = "pmnet_device_acknowledged_seconds";
const STORE: &str = "pmnet_server_store_seconds";
const DEVICE_BEHIND: &str = "pmnet_device_oldest_unapplied_seconds";
const SERVER_BEHIND: &str = "pmnet_server_oldest_unapplied_seconds";

/// Returns the acknowledgements per second of the process and of the kernel together.
fn acks(one: &Loop<'_>) -> Option<f64> {
    let own = one.rate("pmnet_device_acks_total", "")?;
    let kernel = one.rate("pmnet_kernel_packets_total", "confirmed");
    Some(own + kernel.unwrap_or(0.0))
}

/// Returns the position of a device in its chain.
fn role(one: &Loop<'_>) -> String {
    if one.number("pmnet_device_serving", "") == Some(0.0) {
        return "none".into();
    }
    let chain = one.facts()["chain"].as_array();
    let chain: Vec<String> = chain
        .into_iter()
        .flatten()
        .map(ToString::to_string)
        .collect();
    if one.number("pmnet_device_head", "") == Some(1.0) {
        return if chain.len() == 1 { "alone" } else { "head" }.into();
    }
    let at = chain.iter().position(|id| *id == one.label("device"));
    at.map_or_else(
        || "chain".into(),
        |at| format!("{} of {}", at + 1, chain.len()),
    )
}

fn log_used(one: &Loop<'_>) -> String {
    let used = one.number("pmnet_device_log_entries_used", "");
    let capacity = one.number("pmnet_device_log_entries_capacity", "");
    match used.zip(capacity) {
        Some((used, capacity)) if capacity > 0.0 => format!("{:.0}%", 100.0 * used / capacity),
        _ => "-".into(),
    }
}

fn paused(one: &Loop<'_>) -> String {
    one.part_other_than("pmnet_server_store_paused", "none")
        .unwrap_or_else(|| "-".into())
}

const FRONTS: Table = Table {
    title: "FRONTS",
    has: "pmnet_front_clients",
    columns: &[
        AT,
        SECTION,
        SHARD,
        if_some("entry", 4, |one| one.label("entry")),
        STATE,
        number("clients", 5, |one| count(one, "pmnet_front_clients")),
        number("acks/s", 1, |one| rate(one.calls(CALL, "early"))),
        number("writes/s", 3, |one| rate(one.calls(CALL, "write"))),
        number("reads/s", 2, |one| {
            rate(one.rate("pmnet_front_reads_total", ""))
        }),
        number("ack p50", 3, |one| time(one.quantile(CALL, "early", 0.5))),
        number("ack p99", 2, |one| time(one.quantile(CALL, "early", 0.99))),
        number("copies", 2, |one| {
            copies(one, "pmnet_front_copies", "pmnet_front_copies_wanted")
        }),
        number("silent", 2, |one| {
            seconds(one.number("pmnet_front_unanswered_seconds", ""))
        }),
    ],
    rate: |one| one.calls(CALL, "early"),
    latency: |one| one.quantile(CALL, "early", 0.99),
    behind: |one| one.number("pmnet_front_unanswered_seconds", ""),
};

const ROUTER: &str = "pmnet_router_command_seconds";

/// Returns the number of commands per second that were refused because of their slots.
fn refused(one: &Loop<'_>) -> Option<f64> {
    let parts = ["cross_slot", "cluster_down", "try_again"];
    let rates = parts.map(|part| one.rate("pmnet_router_commands_total", part));
    rates.into_iter().sum()
}

const ROUTERS: Table = Table {
    title: "ROUTERS",
    has: "pmnet_router_clients",
    columns: &[
        AT,
        SECTION,
        STATE,
        number("clients", 3, |one| count(one, "pmnet_router_clients")),
        number("to one/s", 1, |one| rate(one.calls(ROUTER, "one"))),
        number("to all/s", 3, |one| rate(one.calls(ROUTER, "all"))),
        number("refused/s", 2, |one| rate(refused(one))),
        number("p50", 3, |one| time(one.quantile(ROUTER, "one", 0.5))),
        number("p99", 1, |one| time(one.quantile(ROUTER, "one", 0.99))),
        number("unserved", 2, |one| {
            count(one, "pmnet_router_slots_unserved")
        }),
        number("moving", 2, |one| count(one, "pmnet_router_slots_moving")),
    ],
    rate: |one| one.calls(ROUTER, "one"),
    latency: |one| one.quantile(ROUTER, "one", 0.99),
    behind: |_| None,
};

const MEMCACHED: Table = Table {
    title: "MEMCACHED FRONTS",
    has: "pmnet_memcached_clients",
    columns: &[
        AT,
        SECTION,
        SHARD,
        STATE,
        number("clients", 5, |one| count(one, "pmnet_memcached_clients")),
        number("sets/s", 1, |one| {
            rate(one.rate("pmnet_memcached_commands_total", "set"))
        }),
        number("hits/s", 2, |one| {
            rate(one.rate("pmnet_memcached_commands_total", "get_hit"))
        }),
        number("misses/s", 3, |one| {
            rate(one.rate("pmnet_memcached_commands_total", "get_miss"))
        }),
        number("errors/s", 3, |one| {
            rate(one.rate("pmnet_memcached_errors_total", ""))
        }),
        number("silent", 2, |one| {
            seconds(one.number("pmnet_memcached_unanswered_seconds", ""))
        }),
    ],
    rate: |one| one.rate("pmnet_memcached_commands_total", ""),
    latency: |_| None,
    behind: |one| one.number("pmnet_memcached_unanswered_seconds", ""),
};

const DEVICES: Table = Table {
    title: "DEVICES",
    has: "pmnet_device_serving",
    columns: &[
        AT,
        SECTION,
        SHARD,
        number("device", 1, |one| one.label("device")),
        STATE,
        text("place", 2, role),
        number("acks/s", 1, |one| rate(acks(one))),
        number("logged/s", 4, |one| {
            rate(one.rate("pmnet_device_order", "last"))
        }),
        number("reads/s", 4, |one| {
            rate(one.rate("pmnet_device_reads_total", ""))
        }),
        number("ack p50", 3, |one| {
            time(one.quantile(ACKNOWLEDGED, "", 0.5))
        }),
        number("ack p99", 2, |one| {
            time(one.quantile(ACKNOWLEDGED, "", 0.99))
        }),
        number("copies", 1, |one| {
            copies(one, "pmnet_device_copies", "pmnet_device_copies_wanted")
        }),
        number("log", 2, log_used),
        number("unapplied", 5, |one| {
            count(one, "pmnet_device_unapplied_orders")
        }),
        number("behind", 1, |one| seconds(one.number(DEVICE_BEHIND, ""))),
        number("lease", 2, |one| {
            seconds(one.number("pmnet_device_lease_seconds_left", ""))
        }),
    ],
    rate: acks,
    latency: |one| one.quantile(ACKNOWLEDGED, "", 0.99),
    behind: |one| one.number(DEVICE_BEHIND, ""),
};

const SERVERS: Table = Table {
    title: "SERVERS",
    has: "pmnet_server_applied_total",
    columns: &[
        AT,
        SECTION,
        SHARD,
        STATE,
        number("applied/s", 1, |one| {
            rate(one.rate("pmnet_server_applied_total", ""))
        }),
        number("executed/s", 3, |one| {
            rate(one.rate("pmnet_server_executed_total", ""))
        }),
        number("step p50", 4, |one| time(one.quantile(STORE, "", 0.5))),
        number("step p99", 2, |one| time(one.quantile(STORE, "", 0.99))),
        number("copies", 3, |one| count(one, "pmnet_server_copies")),
        number("unapplied", 4, |one| {
            count(one, "pmnet_server_unapplied_orders")
        }),
        number("behind", 1, |one| seconds(one.number(SERVER_BEHIND, ""))),
        text("paused", 1, paused),
    ],
    rate: |one| one.rate("pmnet_server_applied_total", ""),
    latency: |one| one.quantile(STORE, "", 0.99),
    behind: |one| one.number(SERVER_BEHIND, ""),
};

const CONTROLLERS: Table = Table {
    title: "CONTROLLERS",
    has: "pmnet_controller_heard_seconds_ago",
    columns: &[
        AT,
        text("fleet", 2, |one| one.label("fleet")),
        SHARD,
        STATE,
        number("steps", 3, |one| count(one, "pmnet_controller_steps_total")),
        number("waits", 2, |one| count(one, "pmnet_controller_waits")),
        number("etcd heard", 1, |one| {
            seconds(one.number("pmnet_controller_heard_seconds_ago", ""))
        }),
    ],
    rate: |one| one.rate("pmnet_controller_looks_total", ""),
    latency: |_| None,
    behind: |one| one.number("pmnet_controller_heard_seconds_ago", ""),
};

/// All tables, in the order in which a write passes the roles.
pub const TABLES: &[Table] = &[ROUTERS, FRONTS, MEMCACHED, DEVICES, SERVERS, CONTROLLERS];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 3.25, 99.9, 150.4, 9_999.0, 12_345.0, 2.5e6].map(short);
        assert_eq!(shown, ["0", "3.2", "99.9", "150", "9999", "12.3k", "2.5M"]);
        let times = [Some(33e-6), Some(0.002), Some(1.5), None].map(time);
        assert_eq!(times, ["33us", "2.0ms", "1.5s", "-"]);
    }
}
