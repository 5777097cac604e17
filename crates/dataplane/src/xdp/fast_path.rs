//! The pipeline as the device's fast path: this module holds and releases the pipeline, tells it the state that it
//! needs to admit, and reads its progress.
//!
//! Invariants: fields that the pipeline also writes are written only through the guard [`Held`]. `last` is written with
//! Release and read with Acquire. So a reader that sees an order in `last` also sees all entries up to this order
//! completely. Orders are never assigned twice: if the process wants to release the pipeline at an order below the
//! pipeline's last order, the release is refused.
//!
//! Spec: `docs/spec/pipeline.md` §2 to §4. This module must not decide when to hold or release.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use pmnet_device::{FastPath, Hold};
use pmnet_log::Tail;
use pmnet_proto::Time;
use pmnet_proto::device::{Bucket, ChainState, HopWork, ReadState, SessionState};
use pmnet_wire::Header;
use pmnet_wire::packet::{Ack, Append, Fragment, Stamp, Update};

use super::error::KernelError;
use super::kernel::{Kernel, print_word};
use super::maps::hop_keys_in;
use super::sessions::BaseCrcs;
use super::shared::FOR_EVER;

/// The held pipeline. Only this guard writes fields that the pipeline also writes.
struct Held<'a>(&'a mut Kernel);

impl Kernel {
    fn held(&mut self) -> Result<Held<'_>, KernelError> {
        if !self.held {
            self.run_control("hold")?;
            self.held = true;
        }
        Ok(Held(self))
    }

    /// Writes the fields of a session that may change while the pipeline admits. If the session has no row yet, the
    /// pipeline is held meanwhile. A CPU may have looked up the session that had this row before, and after the hold it
    /// must look up again.
    fn refresh(&mut self, state: &SessionState) -> Result<(), KernelError> {
        let Some(address) = state.address else {
            return Ok(());
        };
        if let Some(row) = self.sessions.find(state.id) {
            self.sessions.refresh(row, state, address, false);
            return Ok(());
        }
        if self.sessions.is_full() {
            return Ok(());
        }
        let was_held = self.held;
        let mut held = self.held()?;
        held.write_session(state)?;
        if was_held { Ok(()) } else { held.resume() }
    }

    /// Removes a session that has ended. To remove the session's keys, the pipeline is held meanwhile, because a CPU
    /// may be verifying a packet with these keys.
    fn forget(&mut self, id: u64) -> Result<(), KernelError> {
        if self.keys.is_none() || self.sessions.find(id).is_none() {
            return self.sessions.remove(id);
        }
        let was_held = self.held;
        let held = self.held()?;
        held.0.sessions.remove(id)?;
        if was_held { Ok(()) } else { held.resume() }
    }

    /// Returns the checksums of a session's headers. With keys they leave out the tag, which differs in each packet.
    /// The pipeline adds the tag's contribution.
    fn base_crcs(&self, state: &SessionState) -> BaseCrcs {
        let keyed = self.keys.is_some();
        let token = if keyed { 0 } else { state.token };
        let own = if keyed {
            self.stamp.tagged(0)
        } else {
            self.stamp
        };
        let client = Stamp {
            shard: self.stamp.shard,
            epoch: self.stamp.epoch,
            tag: token,
            ..Stamp::default()
        };
        let update = Update {
            session: state.id,
            seq: 0,
            key_hash: 0,
            fragment: Fragment::WHOLE,
        };
        let update = update.header(&client);
        let append = Append::admitted(&update, 0, &own);
        let ack = Ack {
            session: state.id,
            seq: 0,
            committed: 0,
            room: 0,
            applied: 0,
            copies: self.copies,
            short: false,
        };
        let ack = ack.header(&own.tagged(token));
        BaseCrcs {
            update: checksum(update),
            append: checksum(append),
            ack: checksum(ack),
        }
    }
}

impl Held<'_> {
    /// Tells the pipeline the whole state of a session. User space serves a session itself if no row is free for it, or
    /// if its client's address is unknown.
    fn write_session(&mut self, state: &SessionState) -> Result<(), KernelError> {
        let Some(address) = state.address else {
            return Ok(());
        };
        let crcs = self.0.base_crcs(state);
        let sessions = &mut self.0.sessions;
        if let Some(row) = sessions.find(state.id) {
            sessions.write(row, state, &crcs);
            sessions.refresh(row, state, address, false);
        } else if let Some(row) = sessions.take_row(state.id) {
            sessions.write(row, state, &crcs);
            sessions.refresh(row, state, address, true);
            sessions.insert(state.id, row)?;
        }
        Ok(())
    }

    /// Lets the pipeline admit again, from its current order.
    fn resume(self) -> Result<(), KernelError> {
        self.0.run_control("release")?;
        self.0.held = false;
        Ok(())
    }
}

impl Hold for Held<'_> {
    fn describe(&mut self, stamp: &Stamp, chain: &ChainState) -> bool {
        let kernel = &mut self.0;
        let copies = chain.position + 1 + chain.behind.len();
        kernel.copies = u8::try_from(copies).expect("a chain is short");
        kernel.stamp = *stamp;
        // The words must have the byte order of a header.
        let word = |first: u32, second: u32| {
            let number = u64::from(first) << 32 | u64::from(second);
            u64::from_ne_bytes(number.to_be_bytes())
        };
        let shard_epoch = word(stamp.shard, stamp.epoch);
        let device_incarnation = word(stamp.device, stamp.incarnation);
        let token = u64::from_ne_bytes(stamp.tag.to_be_bytes());
        let shard = kernel.shard();
        shard.shard_epoch.store(shard_epoch, Relaxed);
        shard.device_incarnation.store(device_incarnation, Relaxed);
        shard.token.store(token, Relaxed);
        shard.epoch.store(stamp.epoch, Relaxed);
        shard.incarnation.store(stamp.incarnation, Relaxed);
        let longest = u32::try_from(chain.size.bytes()).expect("bounded");
        shard.longest.store(longest, Relaxed);
        shard.keys.store(print_word(chain.print), Relaxed);
        shard.over.store(chain.over, Relaxed);
        if let Some((_, map)) = &kernel.keys {
            hop_keys_in(map).describe(chain.keys.as_ref());
        }
        shard.alone.store(u32::from(copies == 1), Relaxed);
        shard.copies.store(u32::from(kernel.copies), Relaxed);
        let talks = kernel.copies > 1 && chain.next.is_ipv4() == kernel.is_ipv4;
        kernel.chain().describe(chain, talks);
        talks
    }

    fn set_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()> {
        match state {
            Some(state) => self.write_session(&state)?,
            None => self.0.sessions.remove(id)?,
        }
        Ok(())
    }

    fn forget_sessions(&mut self) -> io::Result<()> {
        Ok(self.0.sessions.clear()?)
    }

    fn forget_log(&mut self) -> io::Result<()> {
        let shard = self.0.shard();
        // The field `last` is cleared first, because the other fields of the log have no meaning when `last` is 0.
        shard.last.store(0, Release);
        for word in [
            &shard.head,
            &shard.applied,
            &shard.stated,
            &shard.released,
            &shard.lap,
            &shard.lap_before,
        ] {
            word.store(0, Relaxed);
        }
        self.0.chain().forget();
        self.forget_sessions()
    }

    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]) {
        self.0.begin_reads(state, changed);
    }

    fn answers_for_ever(&mut self) {
        let word = &self.0.shard().answers_until;
        // In most cases the word already has this value. Then it is not stored again, so that its cache line stays with
        // the pipeline's CPU.
        if word.load(Relaxed) != FOR_EVER {
            word.store(FOR_EVER, Release);
        }
    }

    fn release(self: Box<Self>, tail: &Tail) -> io::Result<()> {
        let shard = self.0.shard();
        let given = shard.last.load(Acquire);
        if tail.last < given {
            return Err(io::Error::other(format!(
                "order {given} is given, and the process knows of {} only",
                tail.last
            )));
        }
        shard.head.store(tail.head, Relaxed);
        shard.applied.store(tail.applied, Relaxed);
        shard.stated.store(tail.stated, Relaxed);
        shard.released.store(tail.released, Relaxed);
        shard.lap.store(tail.laps[0], Relaxed);
        shard.lap_before.store(tail.laps[1], Relaxed);
        shard.last.store(tail.last, Release);
        Ok(self.resume()?)
    }
}

impl FastPath for Kernel {
    fn admits(&self) -> bool {
        self.shard().admits.load(Acquire) == 1
    }

    fn last(&self) -> u64 {
        self.shard().last.load(Acquire)
    }

    fn tail(&self) -> Tail {
        let shard = self.shard();
        Tail {
            last: shard.last.load(Acquire),
            head: shard.head.load(Relaxed),
            applied: shard.applied.load(Relaxed),
            stated: shard.stated.load(Relaxed),
            released: shard.released.load(Relaxed),
            laps: [&shard.lap, &shard.lap_before].map(|lap| lap.load(Relaxed)),
        }
    }

    fn hold(&mut self) -> io::Result<Box<dyn Hold + '_>> {
        Ok(Box::new(self.held()?))
    }

    fn look(&mut self) -> HopWork {
        while self.wakeups.next().is_some() {}
        self.chain().work()
    }

    fn applied(&mut self, applied: u64) {
        self.shard().applied.store(applied, Release);
    }

    fn refresh_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()> {
        match state {
            Some(state) => self.refresh(&state)?,
            None => self.forget(id)?,
        }
        Ok(())
    }

    fn sleep(&mut self) -> io::Result<()> {
        Ok(self.run_control("wake_me")?)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        Some(self.wakeups.as_raw_fd())
    }

    fn hand_reads_up(&mut self) {
        self.stop_answering();
    }

    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]) {
        self.tell_reads_beside(state, changed);
    }

    fn answers_until(&mut self, deadline: Option<Time>) {
        // Only one process at a time writes this field, and only with a later time, because the later of two leases
        // counts.
        let told = deadline.map_or(0, |Time(at)| at.min(FOR_EVER - 1));
        let later = |word| Some(told.max(if word == FOR_EVER { 0 } else { word }));
        let word = &self.shard().answers_until;
        if word.fetch_update(Release, Relaxed, later).is_err() {
            unreachable!("there is always a later one");
        }
    }

    fn heard(&mut self, id: u64) -> bool {
        self.sessions.heard(id)
    }
}

/// Returns the checksum field of this header.
fn checksum(header: Header) -> u32 {
    let bytes = header.emit();
    u32::from_be_bytes([bytes[76], bytes[77], bytes[78], bytes[79]])
}
