//! `pmnet redis --shards FILE`: one address for many shards. The file assigns slots to shards. The other keys in an
//! entry of the file are those of section `[redis]` of a configuration.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use pmnet_cli::{ConfigError, bounded_text};
use pmnet_client::{ClientNode, Latest};
use pmnet_front::client::Counters;
use pmnet_front::shards::slot::{SlotMap, parse_slots};
use pmnet_front::shards::{MapChanger, Router, RouterConfig};
use pmnet_front::{Access, Front, FrontConfig, FrontError, Limits, Stopper, clients_within};
use serde::Deserialize;
use serde_json::json;
use toml::{Table, Value};

use super::super::process::Part;
use super::super::reload::{Again, Section, differing, need_restart};
use super::fresh::keep_fresh;
use super::settings::{Settings, check_direct, settings, within_files};
use super::{RedisArgs, Running as RunningFront, Way, log_end, show, take_password};
use crate::status::{FrontBoard, RouterBoard};

/// Maximum size of a map file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Settings that are the same for all shards. An entry of the map file must not have them.
const OF_ALL: [&str; 12] = [
    "listen",
    "shards",
    "users-of-redis",
    "requirepass",
    "requirepass-file",
    "anyone-may-connect",
    "tls-cert",
    "tls-key",
    "tls-ca",
    "tls-clients",
    "connections-max",
    "status",
];

/// The contents of a map file.
pub struct Shards {
    pub map: SlotMap,
    /// The Redis servers of all shards are masters of one Redis Cluster.
    pub cluster: bool,
    pub settings: Vec<Settings>,
    /// The settings of each entry that cannot change while the front runs.
    fixed: Vec<RedisArgs>,
}

/// Reads a map file. `common`: the settings that entries inherit.
fn read(path: &Path, common: &RedisArgs) -> Result<Shards, ConfigError> {
    let place = path.display();
    let bad = |what: &dyn std::fmt::Display| ConfigError(format!("--shards {place}: {what}"));
    let file = std::fs::File::open(path).map_err(|error| bad(&error))?;
    let text = bounded_text(file, FILE_BYTES_MAX).map_err(|error| bad(&error))?;
    understand(&text, common).map_err(|error| bad(&error))
}

fn understand(text: &str, common: &RedisArgs) -> Result<Shards, ConfigError> {
    let wrong = |what: String| Err(ConfigError(what));
    let mut table: Table = toml::from_str(text).map_err(|error| ConfigError(error.to_string()))?;
    let entries = match table.remove("shard") {
        Some(Value::Array(entries)) => entries,
        None => Vec::new(),
        Some(_) => return wrong("shard: write an entry [[shard]] for each shard".into()),
    };
    let cluster = match table.remove("cluster") {
        None => false,
        Some(Value::Boolean(cluster)) => cluster,
        Some(_) => return wrong("cluster: write true or false".into()),
    };
    let moving = match table.remove("moving") {
        None => Vec::new(),
        Some(Value::String(text)) => {
            parse_slots(&text).map_err(|error| ConfigError(format!("moving: {error}")))?
        }
        Some(_) => return wrong("moving: write slots as a text, such as \"7,300-310\"".into()),
    };
    if let Some(key) = table.keys().next() {
        return wrong(format!(
            "{key}: unknown; there are cluster, moving and entries [[shard]]"
        ));
    }
    let (mut ranges, mut found, mut fixed) = (Vec::new(), Vec::new(), Vec::new());
    for (number, entry) in (1..).zip(entries) {
        let in_entry = |error: ConfigError| ConfigError(format!("shard {number}: {error}"));
        let (slots, own) = shard(entry).map_err(in_entry)?;
        ranges.push(slots);
        fixed.push(own.clone().fixed());
        found.push(settings(own.over(common.clone())).map_err(in_entry)?);
    }
    let map = SlotMap::new(&ranges)
        .and_then(|map| map.with_moving(&moving))
        .map_err(|error| ConfigError(error.to_string()))?;
    for (at, settings) in found.iter().enumerate() {
        let same = |other: &&Settings| is_same(settings, other);
        if let Some(first) = found[..at].iter().position(|other| same(&other)) {
            return wrong(format!(
                "shard {} is shard {} once more: the same devices and the same number; give its slots to one entry",
                at + 1,
                first + 1
            ));
        }
    }
    Ok(Shards {
        map,
        cluster,
        settings: found,
        fixed,
    })
}

/// Parses an entry of a map file. Returns its slots and its other settings.
fn shard(entry: Value) -> Result<(Vec<RangeInclusive<u16>>, RedisArgs), ConfigError> {
    let wrong = |what: &str| ConfigError(what.to_owned());
    let Value::Table(mut entry) = entry else {
        return Err(wrong("write an entry [[shard]] for each shard"));
    };
    let slots = match entry.remove("slots") {
        Some(Value::String(text)) => text,
        Some(_) => {
            return Err(wrong(
                "slots: write them as a text, such as \"0-5460,6000\"",
            ));
        }
        None => return Err(wrong("slots are missing: slots = \"0-5460\"")),
    };
    let slots = parse_slots(&slots).map_err(|error| ConfigError(error.to_string()))?;
    if let Some(key) = OF_ALL.iter().find(|key| entry.contains_key(**key)) {
        return Err(ConfigError(format!(
            "{key} is for all shards: give it on the command line, or in section [redis] of --config"
        )));
    }
    let own = RedisArgs::deserialize(Value::Table(entry))
        .map_err(|error| ConfigError(error.to_string()))?;
    Ok((slots, own))
}

/// Returns the addresses of devices in a map file, as the file has them. If the file does not have the form of a map
/// file, the result is empty.
pub fn vias(path: &Path) -> Vec<String> {
    let file = std::fs::File::open(path).and_then(|file| bounded_text(file, FILE_BYTES_MAX));
    let table: Option<Table> = file.ok().and_then(|text| toml::from_str(&text).ok());
    let entries = table
        .as_ref()
        .and_then(|table| table.get("shard")?.as_array());
    let vias = entries.into_iter().flatten();
    vias.filter_map(|entry| entry.get("via")?.as_str().map(str::to_owned))
        .collect()
}

/// Checks a map file. `args`: the settings that entries inherit.
pub fn check(path: &Path, args: RedisArgs) -> Result<(), ConfigError> {
    let shards = read(path, &args.of_all_shards())?;
    let mut fronts = shards.settings.iter().map(|settings| &settings.front);
    fronts.try_for_each(check_direct)
}

/// Returns the contents of a map file, for a command that only reads it.
pub fn look(path: &Path) -> Result<Shards, ConfigError> {
    read(path, &of_nobody())
}

/// Returns the contents of a map file with this text.
#[cfg(test)]
pub fn look_at(text: &str) -> Result<Shards, ConfigError> {
    understand(text, &of_nobody())
}

/// Returns settings for a command that only reads a map file. The settings contain a listen address, because such an
/// address is required, but such a command does not use it.
fn of_nobody() -> RedisArgs {
    RedisArgs {
        listen: Some("127.0.0.1:6380".into()),
        insecure: true,
        ..RedisArgs::default()
    }
}

/// Returns whether two entries describe the same shard.
pub fn is_same(a: &Settings, b: &Settings) -> bool {
    match (&a.follow, &b.follow) {
        (Some(a), Some(b)) => a.names.prefix() == b.names.prefix(),
        (None, None) => {
            let shared = |device| b.client.heads().any(|other| other == device);
            // The names of hosts are also compared, because the addresses of a name may change.
            let named = a.hosts.iter().any(|host| b.hosts.contains(host));
            a.client.shard == b.client.shard && (named || a.client.heads().any(shared))
        }
        _ => false,
    }
}

/// Ends the router when the front ends, by a return or by a panic.
struct EndsWith(Stopper);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.stop();
    }
}

type Running = JoinHandle<Result<Counters, FrontError>>;

/// Returns the new contents of the map file. If the shards in the file differ from the shards at the front's start,
/// returns an error.
fn changed(now: Shards, before: &[Settings], cluster: bool) -> Result<Shards, ConfigError> {
    let same = now.cluster == cluster
        && now.settings.len() == before.len()
        && now.settings.iter().zip(before).all(|(a, b)| is_same(a, b));
    if same {
        return Ok(now);
    }
    Err(ConfigError(
        "--shards: the shards are not those that this front began with, in their order: only slots can be changed while it runs. \
         Start it again"
            .into(),
    ))
}

/// Returns the number of clients that may connect to the router.
fn clients_of(first: &FrontConfig, map: &SlotMap) -> Result<usize, ConfigError> {
    within_files(first.connections_max, |files| {
        clients_within(files, map.shards())
    })
}

/// Handles to a running router and its fronts. A changed map file, or changed settings for all shards, take effect
/// through these handles.
struct Following {
    path: PathBuf,
    /// Settings that are the same for all shards.
    common: Mutex<RedisArgs>,
    began_with: Vec<Settings>,
    fixed: Vec<RedisArgs>,
    cluster: bool,
    changer: MapChanger,
    limits: Latest<Limits>,
    running: Vec<RunningFront>,
}

impl Following {
    fn common(&self) -> MutexGuard<'_, RedisArgs> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, common: &RedisArgs) -> Result<Shards, ConfigError> {
        changed(read(&self.path, common)?, &self.began_with, self.cluster)
    }

    /// At each SIGHUP, reads the configuration again, and then the map file.
    fn on_hangup(self, args: &RedisArgs, again: Again<RedisArgs>, part: &Part<'_>) {
        let own = Arc::new(self);
        part.on_new_settings(args, again, {
            let own = Arc::clone(&own);
            move |new| {
                let common = new.of_all_shards();
                let now = own.read(&common)?;
                clients_of(&now.settings[0].front, &now.map)?;
                let own = Arc::clone(&own);
                // The new settings take effect when the map file is read again, directly after this.
                Ok(Box::new(move || *own.common() = common))
            }
        });
        part.on_reload("the file of shards", move || {
            let taken = own.take();
            taken.map_err(|error| format!("PM3002 {error}. The map stays as it was"))
        });
    }

    /// Reads the map file, and applies its contents.
    fn take(&self) -> Result<(), ConfigError> {
        let common = self.common().clone();
        let now = self.read(&common)?;
        let first = &now.settings[0].front;
        let limits = Limits {
            connections_max: clients_of(first, &now.map)?,
            ..first.limits()
        };
        self.limits.replace(limits);
        self.changer.change(now.map);
        for (running, settings) in self.running.iter().zip(&now.settings) {
            running.take(&settings.front);
        }
        for (before, now) in self.began_with.iter().zip(&now.settings) {
            let both = (&before.front.direct_password, &now.front.direct_password);
            if let (Some(in_use), Some(new)) = both {
                in_use.replace_by(new);
            }
        }
        if common.requirepass.is_some() {
            let both = self.began_with.iter().zip(&now.settings);
            both.for_each(|(before, now)| take_password(&before.front.access, &now.front.access));
        }
        for (at, (before, now)) in self.fixed.iter().zip(&now.fixed).enumerate() {
            let what = format!("shard {} of {}", at + 1, self.path.display());
            need_restart(&what, &differing(before, now));
        }
        Ok(())
    }
}

fn warn_of_gaps(map: &SlotMap, path: &Path) {
    if let Some(slots) = map.gaps() {
        tracing::warn!(
            slots,
            "PM3001 no shard serves these slots: commands for their keys get CLUSTERDOWN. Give them to a shard in {}",
            path.display()
        );
    }
}

/// Starts the fronts of all shards, each in a thread of its own. If one front ends, the router ends.
fn start(
    fronts: Vec<(Front<ClientNode>, Arc<FrontBoard>)>,
    router: &Stopper,
    is_shown: bool,
) -> anyhow::Result<Vec<(Stopper, Running)>> {
    let mut running = Vec::new();
    for (number, (front, board)) in (1..).zip(fronts) {
        let (own, ends) = (front.stopper(), EndsWith(router.clone()));
        let thread = std::thread::Builder::new()
            .name(format!("shard-{number}"))
            .spawn(move || {
                let _ends = ends;
                if is_shown {
                    front.run_observed(|turn| board.turn(turn))
                } else {
                    front.run()
                }
            })
            .context("cannot start the thread of a shard")?;
        running.push((own, thread));
    }
    Ok(running)
}

/// Ends the fronts of all shards.
fn end(running: Vec<(Stopper, Running)>) -> anyhow::Result<()> {
    for (own, _) in &running {
        own.stop();
    }
    for (number, (_, thread)) in (1..).zip(running) {
        let counters = thread
            .join()
            .map_err(|_| anyhow!("the front of shard {number} has panicked"))?
            .with_context(|| format!("the front of shard {number}"))?;
        log_end(&counters, number);
    }
    Ok(())
}

/// Serves until the process is asked to end.
pub fn serve(
    path: &Path,
    args: RedisArgs,
    again: Again<RedisArgs>,
    part: &Part<'_>,
) -> anyhow::Result<bool> {
    let common = args.clone().of_all_shards();
    let Shards {
        map,
        cluster,
        settings,
        fixed,
    } = read(path, &common)?;
    let began_with = settings.clone();
    keep_fresh(part, &common, settings.iter().map(|shard| &shard.front));
    let Some(first) = settings.first() else {
        return Err(anyhow!("--shards {}: no shard", path.display()));
    };
    let config = RouterConfig {
        listen: first.front.listen,
        connections_max: clients_of(&first.front, &map)?,
        spin_micros: first.front.spin_micros,
        tls: first.front.tls.clone(),
        keepalive: first.front.keepalive,
        anyone: matches!(first.front.access, Access::Anyone),
        map: map.clone(),
        cluster,
        pulse: Arc::default(),
    };
    warn_of_gaps(&map, path);
    let (mut fronts, mut entrances, mut followers) = (Vec::new(), Vec::new(), Vec::new());
    for (number, settings) in (1..).zip(settings) {
        let of_shard = || format!("shard {number} of {}", path.display());
        let board = show(part, &settings.front, &settings.client, Some(number));
        let way = Way::find(
            settings.client,
            settings.hosts,
            settings.follow,
            settings.keys,
            settings.reach,
        );
        let Way {
            node,
            follower,
            watch,
            ..
        } = way.with_context(of_shard)?;
        let (front, entrance) =
            Front::behind_router(&settings.front, node).with_context(of_shard)?;
        fronts.push((front, board));
        entrances.push(entrance);
        followers.push((follower, watch));
    }
    let router = Router::bind(&config, entrances)?;
    let stopper = router.stopper();
    part.on_end({
        let stopper = stopper.clone();
        move || stopper.stop()
    });
    let running = fronts.iter().map(|(front, board)| RunningFront {
        limits: front.limits(),
        board: Arc::clone(board),
    });
    let following = Following {
        path: path.to_owned(),
        common: Mutex::new(common),
        began_with,
        fixed,
        cluster,
        changer: router.map_changer(),
        limits: router.limits(),
        running: running.collect(),
    };
    following.on_hangup(&args, again, part);
    let board = Arc::new(RouterBoard::new(Arc::clone(&config.pulse)));
    let is_shown = part.is_shown();
    if is_shown {
        part.show(board.clone());
    }
    let running = start(fronts, &stopper, is_shown)?;
    let unserved = map.unserved();
    part.announce(
        "redis",
        &[
            ("listen", json!(router.local_addr()?.to_string())),
            ("shards", json!(map.shards())),
            (
                "slots",
                json!(usize::from(pmnet_front::shards::slot::SLOTS) - unserved),
            ),
        ],
    );
    let ended = if is_shown {
        router.run_observed(|turn| board.turn(turn))
    } else {
        router.run()
    };
    end(running)?;
    drop(followers);
    tracing::info!(clients = ended?, "the router ends");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> RedisArgs {
        toml::from_str("listen = \"127.0.0.1:6380\"\ndeadline-ms = 700").unwrap()
    }

    const TWO: &str = r#"
        [[shard]]
        slots = "0-8191"
        via = "127.0.0.1:51000"
        [[shard]]
        slots = "8192-16383"
        fleet = "prod"
        etcd = "http://127.0.0.1:2379"
        shard = 1
        deadline-ms = 900
    "#;

    #[test]
    fn each_shard_has_its_own_settings_over_those_of_all() {
        let shards = understand(TWO, &common()).unwrap();
        assert_eq!(shards.map.shards(), 2);
        let [first, second] = &shards.settings[..] else {
            panic!("two shards");
        };
        assert_eq!(first.client.head, "127.0.0.1:51000".parse().unwrap());
        assert_eq!(first.front.call_timeout.as_millis(), 700);
        assert!(first.follow.is_none());
        assert_eq!(second.client.shard, 1);
        assert_eq!(second.front.call_timeout.as_millis(), 900);
        let follow = second.follow.as_ref().unwrap();
        assert_eq!(follow.names.prefix(), "/pmnet/prod/1/");
    }

    #[test]
    fn only_slots_can_change_while_a_front_runs() {
        let before = understand(TWO, &common()).unwrap().settings;
        let read_again = |text: &str| {
            let now = understand(text, &common())?;
            changed(now, &before, false).map(|now| now.map)
        };
        let moved = TWO
            .replace("0-8191", "0-8190")
            .replace("8192-16383", "8191-16383");
        let map = read_again(&format!("moving = \"7\"\n{moved}")).unwrap();
        assert_eq!(
            (map.shard(8191), map.moving().as_deref()),
            (Some(1), Some("7"))
        );
        for other in [
            TWO.replace("51000", "51001"),
            TWO.replace("shard = 1", "shard = 2"),
            format!("cluster = true\n{TWO}"),
            TWO.split("[[shard]]")
                .take(2)
                .collect::<Vec<_>>()
                .join("[[shard]]"),
        ] {
            let error = read_again(&other).unwrap_err().to_string();
            assert!(error.contains("only slots can be changed"), "{error}");
        }
    }

    #[test]
    fn the_example_of_the_help_is_understood() {
        let text: String = super::super::EXAMPLES
            .lines()
            .skip_while(|line| !line.contains("[[shard]]"))
            .map(|line| format!("{line}\n"))
            .collect();
        let common = RedisArgs {
            insecure: true,
            ..common()
        };
        assert_eq!(understand(&text, &common).unwrap().map.gaps(), None);
    }

    #[test]
    fn a_file_that_cannot_be_is_refused_with_a_sentence() {
        let entry = |slots: &str, more: &str| format!("[[shard]]\nslots = \"{slots}\"\n{more}\n");
        let via = |port: u16| format!("via = \"127.0.0.1:{port}\"");
        for (text, says) in [
            (String::new(), "no shard is named"),
            ("shard = 5".into(), "write an entry [[shard]]"),
            ("x = 5".into(), "x: unknown"),
            ("cluster = 5".into(), "write true or false"),
            ("moving = 5".into(), "moving: write slots as a text"),
            ("moving = \"x\"".into(), "moving: slots \"x\""),
            (
                "moving = \"9,10\"\n".to_owned() + &entry("0-9", &via(51000)),
                "slot 10 is to be moving, and belongs to no shard",
            ),
            (
                "[[shard]]\nvia = \"127.0.0.1:51000\"".into(),
                "shard 1: slots are missing",
            ),
            ("[[shard]]\nslots = 5".into(), "write them as a text"),
            (
                entry("0-16384", &via(51000)),
                "numbers and ranges from 0 to 16383",
            ),
            (entry("9-8", &via(51000)), "ends before it begins"),
            (entry("", &via(51000)), "numbers and ranges"),
            (entry("0-9", ""), "--via is missing"),
            (entry("0-9", "vai = \"x\""), "unknown field `vai`"),
            (
                entry("0-9", "copies = 9\nvia = \"127.0.0.1:51000\""),
                "shard 1: --copies 9",
            ),
            (entry("0-9", "listen = \"x\""), "listen is for all shards"),
            (
                entry("0-9", "anyone-may-connect = true"),
                "anyone-may-connect is for all shards",
            ),
            (entry("0-9", "fleet = \"f\""), "--etcd is missing"),
            (
                entry("0-9", &via(51000)) + &entry("9", &via(51001)),
                "slot 9 belongs to shard 1 and to shard 2",
            ),
            (
                entry("0-9", "via = \"127.0.0.1:51000,127.0.0.1:51001\"")
                    + &entry("10", &via(51001)),
                "shard 2 is shard 1 once more",
            ),
            ("[[shard]".into(), "TOML parse error"),
        ] {
            let error = understand(&text, &common()).err().unwrap().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        // An entry with the same devices and another shard number describes another shard.
        let other = entry("0-9", &via(51000)) + &entry("10", &(via(51000) + "\nshard = 1"));
        assert!(understand(&other, &common()).is_ok());
        let missing = read(Path::new("/none/such.toml"), &common());
        assert!(
            missing
                .err()
                .unwrap()
                .to_string()
                .starts_with("--shards /none/such.toml: ")
        );
    }
}
