//! EXEC of a transaction that was queued here: it travels as one atomic call, alone or in a pack.

use bytes::Bytes;
use pmnet_resp::reply;

use super::Back;
use super::calls::Purpose;
use super::pack::Kind;
use crate::client::context::{Context, Later};
use crate::client::errors::EXECABORT;
use crate::client::mode::Mode;
use crate::client::transaction::Rest;
use crate::upstream::{Call, Submit};

/// A transaction at its EXEC.
pub(in crate::client) enum Executed {
    /// It is on its way, or has its reply.
    Sent,
    /// It has this reply.
    Reply(Bytes),
    /// Nothing of it is for the store, and this is left to do.
    Alone(Rest),
}

impl Back {
    /// EXEC.
    ///
    /// # Errors
    /// [`Later`]: it cannot be sent now.
    pub(in crate::client) fn execute(
        &mut self,
        mode: &mut Mode,
        cx: &mut Context<'_>,
    ) -> Result<Executed, Later> {
        let watches = self.passing.watches_here();
        let (packs, bytes) = mode.transaction().map_or((false, 0), |transaction| {
            (transaction.packs() && !watches, transaction.bytes())
        });
        if !(packs && self.packs.has_room_for_transaction(bytes)) {
            self.submit_all(cx)?;
        }
        let Some(mut transaction) = mode.take_transaction() else {
            return Ok(Executed::Reply(reply::error("ERR EXEC without MULTI")));
        };
        if transaction.has_failed() {
            self.passing.unwatch();
            return Ok(Executed::Reply(EXECABORT));
        }
        if packs && self.packs.has_room_for_transaction(bytes) {
            let kind = Kind::of(transaction.is_read_only());
            let begun = cx.pending.times.begun();
            self.packs
                .put_transaction(transaction.commands(), kind, begun, cx.selected);
            self.packs.count_own();
            return Ok(Executed::Sent);
        }
        let (queued, rest) = transaction.take();
        if transaction.is_own_alone() && !watches {
            return Ok(Executed::Alone(rest));
        }
        let payload = self.passing.guarded(&queued);
        let call = Call {
            payload: &payload,
            key_hash: 0,
            how: Submit::Bypass {
                read_only: transaction.is_read_only(),
            },
            deadline: cx.deadline(),
        };
        match self.session.submit(call, cx.up, cx.shared.now) {
            Ok(submitted) => {
                self.passing.unwatch();
                if rest.is_nothing() {
                    cx.pending.expect(submitted, Purpose::one(), bytes);
                } else {
                    // It changes what the next command means.
                    cx.pending
                        .expect_first(submitted, Purpose::Exec(rest), bytes);
                }
                Ok(Executed::Sent)
            }
            Err(later) => {
                transaction.put_back(queued, rest);
                *mode = Mode::Queueing(transaction);
                Err(later)
            }
        }
    }
}
