//! The pipeline's neighbours in a chain: `pm_chain`, as user space writes it.
//!
//! Invariants: user space writes the map only while the pipeline is held. The pipeline itself learns the path to each
//! neighbour. When a neighbour gets another address, this module erases the path. Spec: `docs/spec/pipeline.md` §4.
//! This module must not decide what is committed or sent.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use pmnet_proto::Peer;
use pmnet_proto::device::{ChainState, HopWork};
use pmnet_proto::keys;

use super::shared::{HopKeys, Hops, WAY_INTERFACE};
use super::words::{address_words, port_word, store_key};

impl Hops {
    /// Tells the pipeline the device's place in the chain, and what the machine knows of the devices after it. `talks`:
    /// the pipeline itself sends to the neighbours. If false, the pipeline gets no addresses, and user space sends.
    pub(super) fn describe(&self, state: &ChainState, talks: bool) {
        let behind = u32::try_from(state.behind.len()).expect("a chain is short");
        self.follows.store(u32::from(state.position > 0), Relaxed);
        self.behind.store(behind, Relaxed);
        let next = (talks && behind > 0).then_some(state.next);
        let next_words = [&self.next_high, &self.next_low];
        set_neighbour(next, next_words, &self.next_port, &self.next);
        let beside = |peer: &Peer| talks && peer.is_ipv4() == state.next.is_ipv4();
        let before = state.before.filter(beside);
        let before_words = [&self.before_high, &self.before_low];
        set_neighbour(before, before_words, &self.before_port, &self.before);
        self.receive_window.store(state.receive_window, Relaxed);
        self.window.store(state.window, Relaxed);
        for (index, row) in state.behind.iter().enumerate() {
            let name = u64::from(row.device) << 32 | u64::from(row.incarnation);
            self.names[index].store(name.to_be(), Relaxed);
        }
        for (index, order) in self.orders.iter().enumerate() {
            let held = state.behind.get(index).map_or(0, |row| row.order);
            order.store(held, Relaxed);
        }
        self.credit.store(state.credit, Relaxed);
        self.sent.store(state.sent, Relaxed);
        self.committed.store(state.committed, Relaxed);
    }

    /// Clears the pipeline's progress, because the log begins again.
    pub(super) fn forget(&self) {
        let words = [
            &self.credit,
            &self.sent,
            &self.committed,
            &self.skipped,
            &self.told,
        ];
        for word in words.into_iter().chain(&self.orders) {
            word.store(0, Relaxed);
        }
    }

    /// Returns the pipeline's progress with its neighbours. The pipeline writes `skipped` before the orders, and this
    /// function reads `skipped` after the orders. So if the function sees an order that the pipeline did not
    /// acknowledge, it also sees this in `skipped`.
    pub(super) fn work(&self) -> HopWork {
        let mut work = HopWork::default();
        for (order, shared) in work.orders.iter_mut().zip(&self.orders) {
            *order = shared.load(Acquire);
        }
        work.credit = self.credit.load(Acquire);
        work.sent = self.sent.load(Acquire);
        work.committed = self.committed.load(Acquire);
        work.skipped = self.skipped.load(Acquire);
        work.told = self.told.load(Acquire);
        work
    }
}

impl HopKeys {
    /// Tells the pipeline the keys of the current epoch. Without keys the pipeline verifies nothing.
    pub(super) fn describe(&self, keys: Option<&keys::HopKeys>) {
        store_key(&self.own, keys.map(|keys| keys.own));
        let none = [None; 2];
        let (before, after) = keys.map_or((none, none), |keys| (keys.before, keys.after));
        for (words, [present, other]) in [(&self.before, before), (&self.next, after)] {
            let (first, second) = words.split_at(2);
            store_key(first, present);
            store_key(second, other);
        }
    }
}

/// Tells the pipeline the address of a neighbour. `None`: the pipeline sends nothing to this neighbour.
fn set_neighbour(
    peer: Option<Peer>,
    address: [&AtomicU64; 2],
    port: &AtomicU32,
    way: &[AtomicU32; WAY_INTERFACE + 1],
) {
    let (high, low) = peer.map_or((0, 0), |peer| address_words(peer.ip()));
    let new_port = peer.map_or(0, |peer| port_word(peer.port()));
    let known = (address.map(|word| word.load(Relaxed)), port.load(Relaxed));
    if known != ([high, low], new_port) {
        address[0].store(high, Relaxed);
        address[1].store(low, Relaxed);
        port.store(new_port, Relaxed);
        way[WAY_INTERFACE].store(0, Relaxed);
    }
}
