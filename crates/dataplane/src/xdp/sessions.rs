//! The sessions that the pipeline serves, as user space writes them: one row for each session in `pm_sessions`, and the
//! index from id to row.
//!
//! Invariants: fields have one writer at a time (`shared.rs`). Fields that the pipeline also writes
//! ([`Sessions::write`]) are written only while the pipeline is held, or in a row that it does not use yet. The
//! pipeline compares a row's id with the packet's session id, so it never uses a row with the id 0.
//!
//! Spec: `docs/spec/pipeline.md` §3. This module must not hold or release the pipeline.

#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use aya::maps::{HashMap as BpfHashMap, Map, MapData, MapError};
use memmap2::MmapRaw;
use pmnet_proto::device::SessionState;

use super::error::KernelError;
use super::maps::map_array;
use super::names::{SESSION_ROWS, SESSIONS};
use super::rows::Rows;
use super::shared::{Session, SessionKeys, WAY_INTERFACE};
use super::words::{address_words, port_word, store_key};

/// Checksums of a session's headers with zeros in the fields that vary. The pipeline adds the contributions of these
/// fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct BaseCrcs {
    /// Checksum of an update's header.
    pub update: u32,
    /// Checksum of the header of an update's entry.
    pub append: u32,
    /// Checksum of an acknowledgement's header.
    pub ack: u32,
}

/// The rows of sessions, their index, and the row of each session.
pub(super) struct Sessions {
    /// Mapping of `pm_sessions`.
    map: MmapRaw,
    /// Mapping of `pm_session_keys`, if the shard has keys.
    keys: Option<MmapRaw>,
    index: BpfHashMap<MapData, u64, u32>,
    rows: Rows,
}

impl Sessions {
    /// Maps the sessions. `preferred_mask`: the mask with which the pipeline was loaded ([`Rows`]).
    pub(super) fn new(
        map: &MapData,
        index: Map,
        preferred_mask: u32,
        keys: Option<&MapData>,
    ) -> Result<Sessions, KernelError> {
        // A pinned map keeps the size with which it was made, even if the settings are different now.
        let rows_max = map
            .info()
            .map_err(|error| KernelError::map(SESSIONS, error))?
            .max_entries();
        let bytes = |row: usize| usize::try_from(rows_max).unwrap_or(0) * row;
        let keys = keys.map(|keys| map_array(keys, bytes(size_of::<SessionKeys>())));
        Ok(Sessions {
            map: map_array(map, bytes(size_of::<Session>()))?,
            keys: keys.transpose()?,
            index: BpfHashMap::try_from(index).map_err(index_error)?,
            rows: Rows::new(rows_max, preferred_mask),
        })
    }

    fn row(&self, row: u32) -> &Session {
        let row = usize::try_from(row).expect("u32 fits usize");
        assert!((row + 1) * size_of::<Session>() <= self.map.len());
        // SAFETY: inside the mapping by the assertion. The row is aligned, because rows begin at the start of a page
        // and their size is a multiple of their alignment, 64 bytes; all fields are atomic.
        unsafe { &*self.map.as_ptr().cast::<Session>().add(row) }
    }

    /// Returns the keys of the session in this row; `None`: the shard has no keys.
    fn keys(&self, row: u32) -> Option<&SessionKeys> {
        let keys = self.keys.as_ref()?;
        let row = usize::try_from(row).expect("u32 fits usize");
        assert!((row + 1) * size_of::<SessionKeys>() <= keys.len());
        // SAFETY: the row is inside the mapping and aligned, as in `row`, and all fields are atomic.
        Some(unsafe { &*keys.as_ptr().cast::<SessionKeys>().add(row) })
    }

    /// Returns the row of a session, if it has one.
    pub(super) fn find(&self, id: u64) -> Option<u32> {
        self.rows.get(id)
    }

    /// Returns whether all rows are taken.
    pub(super) fn is_full(&self) -> bool {
        self.rows.is_full()
    }

    /// Gives a row to a session that has none. `None`: all rows are taken. The pipeline finds the session in its row
    /// only after [`Sessions::write`] and [`Sessions::insert`].
    pub(super) fn take_row(&mut self, id: u64) -> Option<u32> {
        self.rows.take(id)
    }

    /// Writes the fields that never change, and the fields that the pipeline also changes. May be called only while the
    /// pipeline is held.
    pub(super) fn write(&self, row: u32, state: &SessionState, crcs: &BaseCrcs) {
        let session = self.row(row);
        session.id.store(state.id, Relaxed);
        session.token.store(state.token.to_be(), Relaxed);
        session.share.store(u32::from(state.share), Relaxed);
        session.last.store(state.last, Relaxed);
        session.committed.store(state.committed, Relaxed);
        session.update_crc.store(crcs.update, Relaxed);
        session.append_crc.store(crcs.append, Relaxed);
        session.ack_crc.store(crcs.ack, Relaxed);
        if let Some(keys) = self.keys(row) {
            store_key(&keys.to_head, state.keys.map(|keys| keys.to_head));
            store_key(&keys.to_client, state.keys.map(|keys| keys.to_client));
        }
    }

    /// Writes the fields that only user space changes. May be called at any time. `new`: the session has just got this
    /// row.
    pub(super) fn refresh(&self, row: u32, state: &SessionState, address: SocketAddr, new: bool) {
        let session = self.row(row);
        session.until.store(state.until, Relaxed);
        session.applied.store(state.applied, Relaxed);
        let (high, low) = address_words(address.ip());
        let port = port_word(address.port());
        let known = (
            session.address_high.load(Relaxed),
            session.address_low.load(Relaxed),
            session.port.load(Relaxed),
        );
        if new || known != (high, low, port) {
            // The client has another address, so the known path to it no longer counts.
            session.client[WAY_INTERFACE].store(0, Relaxed);
        }
        session.port.store(port, Relaxed);
        session.address_high.store(high, Relaxed);
        session.address_low.store(low, Relaxed);
    }

    /// Adds a session to the index.
    pub(super) fn insert(&mut self, id: u64, row: u32) -> Result<(), KernelError> {
        self.index.insert(id.to_be(), row, 0).map_err(index_error)
    }

    /// Removes a session that is over, and frees its row. If the shard has keys, this may be called only while the
    /// pipeline is held.
    pub(super) fn remove(&mut self, id: u64) -> Result<(), KernelError> {
        if let Some(row) = self.rows.give_back(id) {
            self.clear_row(row);
            self.index.remove(&id.to_be()).map_err(index_error)?;
        }
        Ok(())
    }

    /// Removes all sessions, including those of an earlier process.
    pub(super) fn clear(&mut self) -> Result<(), KernelError> {
        let keys: Vec<u64> = self.index.keys().filter_map(Result::ok).collect();
        for key in keys {
            self.index.remove(&key).map_err(index_error)?;
        }
        for row in 0..self.rows.rows_max() {
            // Most rows were never used, and need not be written.
            if self.row(row).id.load(Relaxed) != 0 {
                self.clear_row(row);
            }
        }
        self.rows.clear();
        Ok(())
    }

    fn clear_row(&self, row: u32) {
        let session = self.row(row);
        session.until.store(0, Relaxed);
        session.id.store(0, Relaxed);
        if let Some(keys) = self.keys(row) {
            store_key(&keys.to_head, None);
            store_key(&keys.to_client, None);
        }
    }

    /// Returns whether the pipeline has acknowledged a duplicate of this session since the last call.
    pub(super) fn heard(&self, id: u64) -> bool {
        self.find(id)
            .is_some_and(|row| self.row(row).heard.swap(0, Relaxed) == 1)
    }
}

fn index_error(error: MapError) -> KernelError {
    KernelError::map(SESSION_ROWS, error)
}
