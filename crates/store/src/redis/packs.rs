//! Finds the part of a pack that is executed in one step.
//!
//! A script runs the pack as far as possible (`request.lua`). The script ends before a command that must run between
//! MULTI and EXEC, or when its replies or its running time have reached their limit. If a command that needs MULTI
//! comes first, it runs in a transaction together with the commands after it. A client's transaction runs alone. The
//! front sends the rest of the pack again.

use pmnet_wire::command::{Commands, Form, Protocol};

use super::commands::CommandTable;
use super::plan::{Item, Plan};

impl<'a> Plan<'a> {
    /// Returns the commands of this pack to execute now. `unlimited`: whether Redis has no memory limit. `by_slots`:
    /// whether the store is a Redis Cluster. In a Redis Cluster, a command that cannot run in a script runs alone,
    /// because the next command's keys may be in another slot.
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
            // A command that is refused adds nothing but its reply.
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

    /// Keeps only the first command of a pack that contains no client's transaction. No command of the pack must have
    /// run yet.
    pub fn keep_first(&mut self) {
        self.items.truncate(1);
        self.parts = Some(1);
    }
}
