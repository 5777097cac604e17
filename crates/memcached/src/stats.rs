//! The answers to `stats`.

use crate::connection::Shared;
use crate::request::Stats;

/// The version of memcached whose protocol the front speaks. Clients parse the three numbers of the version, and choose
/// their commands by them.
pub const VERSION: &str = "1.6.18-pmnet";

/// Numbers of events since the start of the front. A client's `stats reset` changes what `stats` shows. A reset does
/// not change these numbers, because the status port shows them, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Commands that stored an item or tried to store one.
    pub sets: u64,
    /// `flush_all` commands.
    pub flushes: u64,
    /// Items that were too large.
    pub too_large: u64,
    /// Commands that were answered with SERVER_ERROR.
    pub errors: u64,
    /// Two numbers: gets that found no item, and gets that found an item.
    pub gets: [u64; 2],
    /// Two numbers: touches that found no item, and touches that found an item.
    pub touches: [u64; 2],
    /// Two numbers: deletes that found no item, and deletes that found an item.
    pub deletes: [u64; 2],
    /// Numbers of misses and hits, first for `incr`, then for `decr`.
    pub counts: [[u64; 2]; 2],
    /// Numbers of hits, of wrong uniques, and of misses of `cas`.
    pub cas: [u64; 3],
    /// Bytes received over TCP and UDP.
    pub bytes_read: u64,
    /// Bytes sent over TCP and UDP.
    pub bytes_written: u64,
    /// UDP requests that were dropped, as a whole or in part.
    pub datagrams_dropped: u64,
    /// Clients that are connected.
    pub connections: u64,
    /// Clients that have ever connected.
    pub connections_ever: u64,
    /// Clients that were refused.
    pub connections_refused: u64,
    /// The time when the front was started, in milliseconds since 1970.
    pub began: u64,
}

impl Counters {
    pub(crate) fn note_get(&mut self, touches: bool, hit: bool) {
        self.gets[usize::from(hit)] += 1;
        self.touches[usize::from(hit)] += u64::from(touches);
    }

    pub(crate) fn note_touch(&mut self, hit: bool) {
        self.touches[usize::from(hit)] += 1;
    }

    pub(crate) fn note_delete(&mut self, hit: bool) {
        self.deletes[usize::from(hit)] += 1;
    }

    pub(crate) fn note_count(&mut self, up: bool, hit: bool) {
        self.counts[usize::from(!up)][usize::from(hit)] += 1;
    }

    pub(crate) fn note_cas(&mut self, code: &str) {
        let at = match code {
            "HD" => 0,
            "EX" => 1,
            _ => 2,
        };
        self.cas[at] += 1;
    }

    /// Returns the differences between these numbers and the numbers `zero`. Numbers that describe the present state
    /// are returned unchanged.
    fn since(&self, zero: &Counters) -> Counters {
        fn less<const N: usize>(now: [u64; N], then: [u64; N]) -> [u64; N] {
            std::array::from_fn(|at| now[at] - then[at])
        }
        let [up, down] = self.counts;
        let [up_then, down_then] = zero.counts;
        Counters {
            sets: self.sets - zero.sets,
            flushes: self.flushes - zero.flushes,
            too_large: self.too_large - zero.too_large,
            errors: self.errors - zero.errors,
            gets: less(self.gets, zero.gets),
            touches: less(self.touches, zero.touches),
            deletes: less(self.deletes, zero.deletes),
            counts: [less(up, up_then), less(down, down_then)],
            cas: less(self.cas, zero.cas),
            bytes_read: self.bytes_read - zero.bytes_read,
            bytes_written: self.bytes_written - zero.bytes_written,
            datagrams_dropped: self.datagrams_dropped - zero.datagrams_dropped,
            connections: self.connections,
            connections_ever: self.connections_ever - zero.connections_ever,
            connections_refused: self.connections_refused - zero.connections_refused,
            began: self.began,
        }
    }
}

/// Returns the answer to `stats`.
pub(crate) fn text(which: Stats, shared: &mut Shared) -> Vec<u8> {
    let mut out = Vec::new();
    let mut say = |name: &str, value: &dyn std::fmt::Display| {
        out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
    };
    match which {
        Stats::Reset => {
            shared.reset = shared.counters;
            return b"RESET\r\n".to_vec();
        }
        Stats::None => {}
        Stats::Settings => {
            say("maxconns", &shared.connections_max);
            say("item_size_max", &shared.item_max);
            say("cas_enabled", &"yes");
            say("flush_enabled", &"yes");
            say("binding_protocol", &"ascii");
            say("evictions", &"off");
        }
        Stats::General => general(shared, &mut say),
    }
    out.extend_from_slice(b"END\r\n");
    out
}

fn general(shared: &Shared, say: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    let counters = &shared.counters.since(&shared.reset);
    let [get_misses, get_hits] = counters.gets;
    let [touch_misses, touch_hits] = counters.touches;
    let [delete_misses, delete_hits] = counters.deletes;
    let [[incr_misses, incr_hits], [decr_misses, decr_hits]] = counters.counts;
    let [cas_hits, cas_badval, cas_misses] = counters.cas;
    let uptime = shared.unix_millis.saturating_sub(counters.began) / 1000;
    say("pid", &std::process::id());
    say("uptime", &uptime);
    say("time", &(shared.unix_millis / 1000));
    say("version", &VERSION);
    say("pmnet_version", &env!("CARGO_PKG_VERSION"));
    say("pointer_size", &usize::BITS);
    for (name, value) in [
        (
            "max_connections",
            u64::try_from(shared.connections_max).unwrap_or(u64::MAX),
        ),
        ("curr_connections", counters.connections),
        ("total_connections", counters.connections_ever),
        ("rejected_connections", counters.connections_refused),
        ("cmd_get", get_hits + get_misses),
        ("cmd_set", counters.sets),
        ("cmd_flush", counters.flushes),
        ("cmd_touch", touch_hits + touch_misses),
        ("get_hits", get_hits),
        ("get_misses", get_misses),
        ("delete_misses", delete_misses),
        ("delete_hits", delete_hits),
        ("incr_misses", incr_misses),
        ("incr_hits", incr_hits),
        ("decr_misses", decr_misses),
        ("decr_hits", decr_hits),
        ("cas_misses", cas_misses),
        ("cas_hits", cas_hits),
        ("cas_badval", cas_badval),
        ("touch_hits", touch_hits),
        ("touch_misses", touch_misses),
        ("store_too_large", counters.too_large),
        ("server_errors", counters.errors),
        ("datagrams_dropped", counters.datagrams_dropped),
        ("bytes_read", counters.bytes_read),
        ("bytes_written", counters.bytes_written),
        ("threads", 1),
    ] {
        say(name, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the status port must not change when a client resets the numbers of `stats`.
    #[test]
    fn a_reset_concerns_stats_alone() {
        let mut shared = Shared::new(0, 1 << 20, 10, 0);
        shared.counters.sets = 3;
        shared.counters.errors = 2;
        shared.counters.connections = 1;
        assert_eq!(text(Stats::Reset, &mut shared), b"RESET\r\n");
        shared.counters.sets += 1;
        let said = String::from_utf8(text(Stats::General, &mut shared)).unwrap();
        for line in ["cmd_set 1", "server_errors 0", "curr_connections 1"] {
            assert!(said.contains(&format!("STAT {line}\r\n")), "{said}");
        }
        assert_eq!((shared.counters.sets, shared.counters.errors), (4, 2));
    }
}
