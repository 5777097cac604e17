//! EXEC of a transaction that was queued in the front. The transaction travels as one atomic call, alone or
//! in a pack.

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

/// Result of an EXEC.
pub(in crate::client) enum Executed {
    /// The transaction is under way, or has its reply.
    Sent,
    /// The transaction has this reply.
    Reply(Bytes),
    /// No command of the transaction is for the store. The front still has to carry out the commands that it answers
    /// itself.
    Alone(Rest),
}

impl Back {
    /// Executes the queued transaction.
    ///
    /// # Errors
    /// [`Later`]: the transaction cannot be sent now.
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
                    // The meaning of the client's next command depends on the outcome of this EXEC.
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
