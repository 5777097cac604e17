//! Turns a payload into the commands to send to Redis. If a command is denied, the plan has its reply instead of the
//! command.

use pmnet_resp::reply;
use pmnet_wire::command::{Commands, Form, Protocol};
use pmnet_wire::guard;
use pmnet_wire::slots::slot_of;

use super::commands::{
    CommandTable, SCRIPT_ARGUMENTS_MAX, denied, denied_as_effect, is_flush, is_harmless,
    sets_guarded, upper,
};
use super::exact::survives_script;
use super::promise;
use super::runs::splits;

/// The reply to a command that names pmnet's own keys.
const RESERVED: &[u8] = b"-ERR pmnet: keys that begin with pmnet:{ are reserved\r\n";

/// One command of a request.
#[derive(Debug)]
pub enum Item<'a> {
    /// A command to run: its name in upper case, and all arguments (the first is the name as sent).
    Run(Vec<u8>, Vec<&'a [u8]>),
    /// A command that does not run, and the reply to it.
    Done(Vec<u8>),
    /// The next commands run in this database, which exists. This item appears only in a transaction with a record.
    Select(u32),
    /// This many next commands are a transaction. This item appears only in a pack.
    Transaction(usize),
}

/// A request that has been checked.
#[derive(Debug)]
pub struct Plan<'a> {
    /// How the commands belong together.
    pub form: Form,
    /// RESP version of the reply.
    pub resp3: bool,
    /// Database of the commands.
    pub database: u32,
    /// The commands of the request, checked.
    pub items: Vec<Item<'a>>,
    /// For a pack, the maximum number of parts that this plan runs. The reply is the array of the replies to these
    /// parts.
    pub parts: Option<usize>,
}

impl<'a> Plan<'a> {
    /// Returns a plan that runs nothing and replies `reply`.
    pub fn done(reply: Vec<u8>) -> Plan<'a> {
        Plan {
            form: Form::Single,
            resp3: false,
            database: 0,
            items: vec![Item::Done(reply)],
            parts: None,
        }
    }

    /// Checks the commands of a request. `unlimited`: whether Redis has no memory limit. `databases`: the databases
    /// that the request's SELECTs may name; empty if the request must not contain a SELECT, or has no record.
    /// `recorded`: whether the request has a record. In a recorded transaction, a command that names pmnet's own keys
    /// is refused without failing the transaction. The AOF of a Redis that pmnet has used contains transactions of this
    /// kind.
    pub fn new(
        commands: &Commands<'a>,
        table: &CommandTable,
        unlimited: bool,
        databases: &[u32],
        recorded: bool,
    ) -> Plan<'a> {
        let mut items = Vec::with_capacity(commands.count);
        for arguments in commands.iter() {
            let arguments: Vec<&[u8]> = arguments.collect();
            let name = upper(arguments[0]);
            if let Some(database) = selected(&name, &arguments)
                && databases.contains(&database)
            {
                items.push(Item::Select(database));
                continue;
            }
            let in_transaction = commands.form == Form::Transaction;
            match objection(&name, &arguments, table, unlimited, in_transaction) {
                None => items.push(Item::Run(name, arguments)),
                Some(error) if recorded && error == RESERVED => items.push(Item::Done(error)),
                Some(error) if in_transaction => return Plan::done(error),
                Some(error) => items.push(Item::Done(error)),
            }
        }
        Plan {
            form: commands.form,
            resp3: commands.protocol == Protocol::Resp3,
            database: commands.database,
            items,
            parts: None,
        }
    }

    /// Returns whether the request script can run the plan and return its replies unchanged.
    pub fn runs_in_script(&self, table: &CommandTable) -> bool {
        let fits = |(name, arguments): (&Vec<u8>, &Vec<&[u8]>)| {
            table.scriptable(name, arguments) && survives_script(name, arguments, self.resp3)
        };
        !self.selects() && self.runs().all(fits)
    }

    /// Returns the reply if no command has to run.
    pub fn finished(&self) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        for item in &self.items {
            match item {
                Item::Done(bytes) => reply.extend_from_slice(bytes),
                Item::Run(..) | Item::Select(_) | Item::Transaction(_) => return None,
            }
        }
        Some(reply)
    }

    /// Returns whether the plan changes the database, so that no script can run it.
    fn selects(&self) -> bool {
        self.items
            .iter()
            .any(|item| matches!(item, Item::Select(_)))
    }

    /// Returns the known slots of the plan's keys in a Redis Cluster. Each slot appears once.
    pub fn slots(&self, table: &CommandTable) -> Vec<u16> {
        let keys = self.runs().flat_map(|(name, a)| table.slot_keys(name, a));
        let mut slots: Vec<u16> = keys.map(|key| slot_of(key)).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Returns the commands to run.
    pub fn runs(&self) -> impl Iterator<Item = (&Vec<u8>, &Vec<&'a [u8]>)> {
        self.items.iter().filter_map(|item| match item {
            Item::Run(name, arguments) => Some((name, arguments)),
            Item::Done(_) | Item::Select(_) | Item::Transaction(_) => None,
        })
    }
}

/// Returns the database that this command selects, if the command is a SELECT of a database.
pub fn selected(name: &[u8], arguments: &[&[u8]]) -> Option<u32> {
    let [_, number] = arguments else {
        return None;
    };
    let number = pmnet_resp::parse_integer(number).filter(|_| name == b"SELECT")?;
    u32::try_from(number).ok()
}

fn objection(
    name: &[u8],
    arguments: &[&[u8]],
    table: &CommandTable,
    unlimited: bool,
    in_transaction: bool,
) -> Option<Vec<u8>> {
    let shown = String::from_utf8_lossy(name).escape_debug().to_string();
    // Inside a transaction, WAIT and WAITAOF return at once.
    let waits_not = matches!(name, b"WAIT" | b"WAITAOF") && in_transaction;
    let fits = waits_not || is_harmless(name, arguments);
    if let Some(why) = denied(name).filter(|_| !fits) {
        let text = format!("ERR pmnet: {shown} is not available here: {why}");
        return Some(reply::error(&text).into());
    }
    if table.touches_records(name, arguments) {
        return Some(RESERVED.to_vec());
    }
    if let Some(why) = table.unfit(name, arguments) {
        let text = format!("ERR pmnet: {shown} is not available here: {why}");
        return Some(reply::error(&text).into());
    }
    if let Some(why) = guard::reaches_records(arguments.len(), |index| arguments[index]) {
        let text = format!("ERR pmnet: {shown} is not available here: {why}");
        return Some(reply::error(&text).into());
    }
    if let Some(setting) = sets_guarded(arguments, unlimited) {
        let text = format!(
            "ERR pmnet: acknowledged writes rest on this setting ({}): change it in Redis itself and restart the pmnet server",
            setting.to_ascii_lowercase()
        );
        return Some(reply::error(&text).into());
    }
    if table.changes_access(arguments) {
        return Some(
            b"-ERR pmnet: ACL is not available here: it could take pmnet's own rights in Redis away: send it to Redis directly\r\n"
                .to_vec(),
        );
    }
    None
}

/// Facts about an update that are found before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Whether a front acknowledged the update without knowing the data.
    pub promised: bool,
    /// Whether the update empties a database.
    pub flushes: bool,
    /// Whether a script can run the update.
    pub scriptable: bool,
}

/// Checks an update. `by_slots`: whether the store is a Redis Cluster, so that the update must run in a script.
///
/// # Errors
/// The reason why the update must not be sent, for the log.
pub fn check_effect(
    commands: &Commands<'_>,
    table: &CommandTable,
    by_slots: bool,
) -> Result<Nature, String> {
    if commands.count == 0 {
        return Err("an update without a command".into());
    }
    let mut nature = Nature {
        promised: true,
        flushes: false,
        scriptable: true,
    };
    let mut arguments = Vec::new();
    for command in commands.iter() {
        arguments.clear();
        arguments.extend(command);
        // No key of a promised command is reserved, and every Redis that passed the checks runs such a command in a
        // script.
        if promise::is_promised(&arguments) {
            nature.scriptable &= by_slots || arguments.len() <= SCRIPT_ARGUMENTS_MAX;
            continue;
        }
        nature.promised = false;
        let name = upper(arguments[0]);
        if let Some(why) = denied_as_effect(&name) {
            return Err(format!("{}: {why}", String::from_utf8_lossy(&name)));
        }
        if table.touches_records(&name, &arguments) {
            return Err("its key begins with pmnet:{, which is reserved".into());
        }
        let flushes = is_flush(&name);
        nature.flushes |= flushes;
        nature.scriptable &=
            flushes || table.scriptable(&name, &arguments) || (by_slots && splits(&name));
    }
    if by_slots && !nature.scriptable {
        return Err("it cannot run in a script, and the store is a Redis Cluster".into());
    }
    Ok(nature)
}
