//! Commands that are sent again: packed reads whose replies do not fit into one message, and the parts of a
//! pack that the store left out ([`super::pack`]).
//!
//! Each of these replies may fit into a message of its own, so the reads are sent again one by one. Until a pack has
//! its replies, no later command of its connection is sent. A later command that were sent before would be executed
//! before the reads that are sent again. These reads would then show a newer state than the pipeline's order allows. A
//! session has only one bypass under way at a time, so this rule costs no additional round trip.

use bytes::Bytes;
use pmnet_resp::{scan::count, write_command};
use pmnet_wire::command::{Commands, Form, preamble};

use super::calls::{Purpose, Session};
use super::pack::Packs;
use crate::client::context::{Context, Later};
use crate::client::face::Pending;
use crate::client::replies::Slot;
use crate::upstream::{Call, Outcome, Submit};

/// Returns whether the outcome of the call at `index` requires that its commands are sent one by one. If the commands
/// must be sent one at a time, this function replaces the call by its commands.
pub(in crate::client) fn unpack(
    pending: &mut Pending,
    index: usize,
    purpose: &Purpose,
    outcome: &Outcome,
) -> bool {
    let (
        Purpose::Bypass {
            replies,
            again: Some(payload),
            ..
        },
        Outcome::Reply(reply),
    ) = (purpose, outcome)
    else {
        return false;
    };
    if count(reply) == Some(*replies) {
        return false;
    }
    let Ok(commands) = Commands::parse(payload) else {
        return false;
    };
    let head = preamble(Form::Single, commands.protocol, commands.database);
    let slots = &mut pending.replies.slots;
    // All later slots are messages to a subscriber.
    let mut after = slots.split_off(index);
    after.pop_front();
    slots.extend(commands.iter().map(|arguments| {
        let mut single = head.to_vec();
        write_command(&mut single, &arguments.collect::<Vec<_>>());
        Slot::Again {
            payload: Bytes::from(single),
            purpose: Purpose::one(),
            read_only: true,
        }
    }));
    slots.append(&mut after);
    pending.hold.for_repeats();
    true
}

/// Submits the commands that must be sent again, before any other command. Each command waits until the previous
/// command has its reply and the client can take another reply. So only one reply is held.
///
/// # Errors
/// [`Later`], until all commands that must be sent again are submitted.
pub(in crate::client) fn repeat(
    packs: &mut Packs,
    session: &mut Session,
    cx: &mut Context<'_>,
) -> Result<(), Later> {
    let replies = &mut cx.pending.replies;
    let again = |slot: &Slot| matches!(slot, Slot::Again { .. });
    while let Some(index) = replies.slots.iter().position(again) {
        let waits = |slot: &Slot| matches!(slot, Slot::Call { .. });
        if replies.congested() || replies.slots.iter().take(index).any(waits) {
            return Err(Later::Outstanding);
        }
        let Slot::Again {
            payload, read_only, ..
        } = &replies.slots[index]
        else {
            break;
        };
        let call = Call {
            payload,
            key_hash: 0,
            how: Submit::Bypass {
                read_only: *read_only,
            },
            // Each command has its own time, which begins with the answer to the previous command.
            deadline: cx.shared.deadline(cx.pending.times.answered()),
        };
        let submitted = session.submit(call, cx.up, cx.shared.now)?;
        if replies.submitted(index, submitted) {
            packs.went_out();
        }
        replies.drain();
    }
    cx.pending.hold.release();
    Ok(())
}
