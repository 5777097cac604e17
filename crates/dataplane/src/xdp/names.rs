//! Names of the maps in `bpf/maps.h`. Each map is pinned under its name.

/// The log's image.
pub(super) const IMAGE: &str = "pm_image";
/// State of the shard.
pub(super) const SHARDS: &str = "pm_shards";
/// The neighbours of the device in its chain.
pub(super) const CHAIN: &str = "pm_chain";
/// Sessions, by row.
pub(super) const SESSIONS: &str = "pm_sessions";
/// The row of each session, by session id.
pub(super) const SESSION_ROWS: &str = "pm_session_rows";
/// The index of READs.
pub(super) const BUCKETS: &str = "pm_buckets";
/// For each bucket, the state that only user space knows.
pub(super) const CLOSED: &str = "pm_closed";
/// Counters, per CPU.
pub(super) const COUNTS: &str = "pm_counts";
/// Ring buffer that wakes user space.
pub(super) const WAKEUPS: &str = "pm_wakeups";
/// Keys between hops, of a shard with keys.
pub(super) const HOP_KEYS: &str = "pm_hop_keys";
/// Keys of sessions, by row, of a shard with keys.
pub(super) const SESSION_KEYS: &str = "pm_session_keys";
/// The names of all maps.
pub(super) const ALL: [&str; 11] = [
    IMAGE,
    SHARDS,
    CHAIN,
    SESSIONS,
    SESSION_ROWS,
    BUCKETS,
    CLOSED,
    COUNTS,
    WAKEUPS,
    HOP_KEYS,
    SESSION_KEYS,
];
