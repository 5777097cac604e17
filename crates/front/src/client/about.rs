//! The store in the reply to HELLO: its name, version and modules.
//!
//! Clients choose their commands and features by what the reply to HELLO says about the store. The first HELLO asks the
//! store through the pmnet server, and so does the first HELLO after the server has changed to another Redis process.
//! The answer is kept for all clients. If the store does not answer within [`ASK_TIME_MAX`], the reply to HELLO has the
//! last known values. If no values are known yet, the reply names the oldest Redis that pmnet supports, so a client
//! uses no feature that the store may lack.

use bytes::Bytes;
use pmnet_resp::{
    Scanner, read, write_bulk, write_command, write_header, write_integer, write_map,
};
use pmnet_wire::StoreName;
use pmnet_wire::command::{Form, Protocol, preamble};

use crate::limits::REPLIES;
use crate::store::identity::run_id_of;
use crate::upstream::{Outcome, Time};

/// The longest time that a HELLO waits for the store's answer, in nanoseconds.
pub(super) const ASK_TIME_MAX: Time = 1_000_000_000;
/// The oldest Redis that the pmnet server accepts.
const OLDEST: &str = "6.2.0";
/// Nanoseconds until the store is asked again after an answer that could not be used.
const ASK_AGAIN_AFTER: Time = 10_000_000_000;

/// Name, version and modules of the store, as the store has stated them.
#[derive(Debug)]
pub(crate) struct About {
    server: String,
    version: String,
    /// One RESP2 array of names and values for each module.
    modules: Vec<Bytes>,
    /// The `run_id` of the store process that gave these facts; empty if the answer named no `run_id`. `None`: the
    /// store must be asked for its facts.
    of: Option<String>,
    /// Earliest time at which the store may be asked again.
    ask_after: Time,
}

impl Default for About {
    fn default() -> About {
        About {
            server: "redis".to_owned(),
            version: OLDEST.to_owned(),
            modules: Vec::new(),
            of: None,
            ask_after: 0,
        }
    }
}

impl About {
    /// Notes that the server works on another store now, so the store must be asked for its facts again.
    pub(super) fn is_another(&mut self) {
        self.of = None;
        self.ask_after = 0;
    }

    /// Whether the store must be asked now. `store`: the store that the server named last. The kept facts may be those
    /// of another store.
    pub(super) fn is_to_be_asked(&self, store: Option<&StoreName>, now: Time) -> bool {
        let is_of = |of: &String| store.is_none_or(|store| store.run_id == *of);
        !self.of.as_ref().is_some_and(is_of) && now >= self.ask_after
    }

    /// Returns the question for the store's facts.
    pub(super) fn question() -> Bytes {
        let mut payload = preamble(Form::Pipeline, Protocol::Resp2, 0).to_vec();
        write_command(&mut payload, &["INFO", "server"]);
        write_command(&mut payload, &["MODULE", "LIST"]);
        payload.into()
    }

    /// Takes the answer to [`About::question`].
    pub(super) fn learn(&mut self, outcome: &Outcome, now: Time) {
        let known = match outcome {
            Outcome::Reply(reply) => self.take(reply),
            _ => None,
        };
        // If the answer comes from a store that the server does not work on, the next question follows soon.
        let pause = if known.is_some() {
            ASK_TIME_MAX
        } else {
            ASK_AGAIN_AFTER
        };
        self.of = known;
        self.ask_after = now.saturating_add(pause);
    }

    /// Takes the facts from an answer. Returns the `run_id` of the store that gave this answer.
    fn take(&mut self, reply: &Bytes) -> Option<String> {
        let length = Scanner::new(REPLIES).poll(reply).ok()??;
        let info = String::from_utf8_lossy(read::bulk(&reply[..length])?).into_owned();
        let field = |name: &str| {
            let mut lines = info.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let redis = field("redis_version")?;
        // Valkey gives its name in `server_name`, unless it is configured to present itself as Redis.
        let name = field("server_name").unwrap_or("redis");
        let version = match name {
            "valkey" => field("valkey_version").unwrap_or(redis),
            _ => redis,
        };
        (self.server, self.version) = (name.to_owned(), version.to_owned());
        // If the server has no right to list modules, this part of the answer is an error, and the reply to HELLO names
        // no modules.
        let modules = read::elements(&reply[length..]).unwrap_or_default();
        self.modules = modules
            .into_iter()
            .map(|module| reply.slice_ref(module))
            .collect();
        Some(run_id_of(&reply[..length]).unwrap_or_default())
    }

    /// Returns the reply to a HELLO of the client with the number `id`.
    pub(super) fn reply(&self, protocol: Protocol, id: i64) -> Bytes {
        let resp3 = protocol == Protocol::Resp3;
        let mut out = Vec::new();
        write_map(&mut out, 7, resp3);
        write_bulk(&mut out, b"server");
        write_bulk(&mut out, self.server.as_bytes());
        write_bulk(&mut out, b"version");
        write_bulk(&mut out, self.version.as_bytes());
        write_bulk(&mut out, b"proto");
        write_integer(&mut out, if resp3 { 3 } else { 2 });
        write_bulk(&mut out, b"id");
        write_integer(&mut out, id);
        write_bulk(&mut out, b"mode");
        write_bulk(&mut out, b"standalone");
        write_bulk(&mut out, b"role");
        write_bulk(&mut out, b"master");
        write_bulk(&mut out, b"modules");
        write_header(&mut out, self.modules.len());
        for module in &self.modules {
            let fields = read::elements(module).unwrap_or_default();
            write_map(&mut out, fields.len() / 2, resp3);
            fields.iter().for_each(|field| out.extend_from_slice(field));
        }
        Bytes::from(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(info: &str, modules: &str) -> About {
        let mut about = About::default();
        let reply = format!("${}\r\n{info}\r\n{modules}", info.len());
        about.learn(&Outcome::Reply(Bytes::from(reply)), 0);
        about
    }

    fn text(about: &About, protocol: Protocol) -> String {
        String::from_utf8(about.reply(protocol, 9).to_vec()).unwrap()
    }

    #[test]
    fn the_store_is_called_what_it_calls_itself() {
        for (info, server, version) in [
            (
                "# Server\r\nredis_version:8.2.3\r\nrun_id:a\r\n",
                "redis",
                "8.2.3",
            ),
            (
                "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n",
                "valkey",
                "9.1.2",
            ),
            (
                "redis_version:7.2.4\r\nserver_name:redis\r\nvalkey_version:9.1.2\r\n",
                "redis",
                "7.2.4",
            ),
        ] {
            let about = after(info, "*0\r\n");
            assert_eq!((&*about.server, &*about.version), (server, version));
            assert!(!about.is_to_be_asked(None, u64::MAX));
        }
    }

    #[test]
    fn modules_are_maps_where_the_protocol_has_them() {
        let module = "*4\r\n$4\r\nname\r\n$2\r\nbf\r\n$3\r\nver\r\n:20805\r\n";
        let about = after("redis_version:7.4.1", &format!("*1\r\n{module}"));
        assert!(text(&about, Protocol::Resp2).ends_with(&format!("modules\r\n*1\r\n{module}")));
        let map = module.replace("*4", "%2");
        assert!(text(&about, Protocol::Resp3).ends_with(&format!("modules\r\n*1\r\n{map}")));
        let about = after("redis_version:7.4.1", "-NOPERM no\r\n");
        assert!(text(&about, Protocol::Resp3).ends_with("modules\r\n*0\r\n"));
    }

    #[test]
    fn what_is_no_answer_changes_nothing_and_is_asked_again_later() {
        let mut about = after("redis_version:8.2.3", "*0\r\n");
        about.is_another();
        assert!(about.is_to_be_asked(None, 0));
        for outcome in [Outcome::Unknown, Outcome::Reply(Bytes::from("-ERR x\r\n"))] {
            about.learn(&outcome, 5);
            assert_eq!(about.version, "8.2.3");
            assert!(!about.is_to_be_asked(None, 4 + ASK_AGAIN_AFTER));
            assert!(about.is_to_be_asked(None, 5 + ASK_AGAIN_AFTER));
        }
    }

    /// The question was under way when the server changed to another store.
    #[test]
    fn an_answer_of_the_store_before_is_not_that_of_the_new_one() {
        let name = |run_id| {
            let text = format!("redis://127.0.0.1:1/?run_id={run_id}&records=r&owner=o");
            StoreName::parse(text.as_bytes()).unwrap()
        };
        let mut about = after("redis_version:7.4.1\r\nrun_id:old\r\n", "*0\r\n");
        let (old, new) = (name("old"), name("new"));
        assert!(!about.is_to_be_asked(Some(&old), u64::MAX));
        assert!(!about.is_to_be_asked(Some(&new), ASK_TIME_MAX - 1));
        assert!(about.is_to_be_asked(Some(&new), ASK_TIME_MAX));
        let info = "redis_version:8.2.3\r\nrun_id:new\r\n";
        let reply = format!("${}\r\n{info}\r\n*0\r\n", info.len());
        about.learn(&Outcome::Reply(Bytes::from(reply)), 0);
        assert!(!about.is_to_be_asked(Some(&new), u64::MAX));
    }
}
