//! The part of a pack that is executed in one step.
//!
//! A script runs it as far as it can: up to what must run between MULTI and EXEC, or as far as its replies and its time go
//! (`request.lua`). If that comes first, it runs with the commands after it; a transaction runs alone. The front sends the rest again.

use pmnet_wire::command::{Commands, Form, Protocol};

use super::commands::CommandTable;
use super::plan::{Item, Plan};

impl<'a> Plan<'a> {
    /// Commands of this pack to execute now. `unlimited`: there is no limit for Redis's memory. `by_slots`: a command that cannot run in a script runs
    /// alone, since its keys are of one slot, and the next command's may be of another.
    pub fn of_pack(
        commands: &Commands<'a>,
        table: &CommandTable,
        unlimited: bool,
        by_slots: bool,
    ) -> Plan<'a> {
        let mut plan = Plan {
            form: Form::Pack,
            resp3: commands.protocol == Protocol::Resp3,
            database: commands.database,
            items: Vec::with_capacity(commands.count),
            parts: Some(0),
        };
        let mut count = 0;
        for unit in commands.units() {
            let part = Plan::new(&unit.commands, table, unlimited, &[], true);
            let scripted = part.runs_in_script(table);
            // One that is refused is only its reply.
            let transaction = part.form == Form::Transaction;
            if count == 0 && !scripted {
                if transaction {
                    return Plan {
                        parts: Some(1),
                        ..part
                    };
                }
                plan.form = Form::Pipeline;
            }
            let goes_on = match plan.form {
                Form::Pipeline => !transaction && (count == 0 || !by_slots),
                _ => scripted,
            };
            if !goes_on {
                break;
            }
            if transaction {
                plan.items.push(Item::Transaction(part.items.len()));
            }
            plan.items.extend(part.items);
            count += 1;
        }
        plan.parts = Some(count);
        plan
    }

    /// Only the first command, of a pack of which no transaction is left: nothing has run.
    pub fn keep_first(&mut self) {
        self.items.truncate(1);
        self.parts = Some(1);
    }
}
