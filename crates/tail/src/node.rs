//! Joins the device's node and the server's node, and passes packets between them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use pmnet_device::{Buffers, DeviceError, DeviceNode, Port, Served, Taken};
use pmnet_log::{Log, Media};
use pmnet_packet_store::{Seat, Shared};
use pmnet_proto::keys::ClusterKeys;
use pmnet_proto::time::earliest;
use pmnet_proto::{Outbox, Peer, Time};
use pmnet_server::ServerNode;
use pmnet_store::RegionStore;

/// The address by which the device knows the server: the next hop in the device's settings. No packet from a network
/// has this source address.
pub const SERVER: Peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// The address by which the server knows the device.
const DEVICE: Peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 1);

/// A device and the server of its shard in one process, over one region ([`crate`]).
pub struct StoreDevice<M: Media> {
    device: DeviceNode<Seat<M>>,
    server: ServerNode<RegionStore<M>>,
    /// Packets from the device that the server has not received yet.
    handed: Outbox,
    /// Packets from the server that the device has not received yet.
    answers: Outbox,
    /// The server may have more work, because it has not reported that it is idle.
    again: bool,
    /// The port receives packets directly into the log's buffers. So the port decides about each released buffer.
    port_has_buffers: bool,
}

/// The region, as the object with which a port exchanges buffers.
struct Exchange<'r, M: Media>(&'r mut Shared<M>);

impl<M: Media> Buffers for Exchange<'_, M> {
    fn lend(&mut self) -> Option<u32> {
        self.0.lend_buffer()
    }
    fn deposit(&mut self, at: usize, packet: &[u8]) {
        self.0.deposit(at, packet);
    }
    fn give_back(&mut self, number: u32) {
        self.0.give_back_buffer(number);
    }
    fn poll_released(&mut self) -> Option<u32> {
        self.0.poll_released()
    }
    fn wants(&self) -> bool {
        self.0.wants_buffers()
    }
}

impl<M: Media + Send> StoreDevice<M> {
    /// Joins a device and a server. The device's log must be in the server's region, and its next hop must be
    /// [`SERVER`]. `port_has_buffers`: packets arrive through [`Served::receive_in_place`].
    ///
    /// # Panics
    /// Panics if the log was not taken out of the region before.
    pub fn new(
        device: DeviceNode<Seat<M>>,
        server: ServerNode<RegionStore<M>>,
        port_has_buffers: bool,
    ) -> StoreDevice<M> {
        StoreDevice {
            // The server reads packets in the log, so they are not copied.
            device: device.with_packet_buffers(),
            server,
            handed: Outbox::new(),
            answers: Outbox::new(),
            again: true,
            port_has_buffers,
        }
    }

    /// Returns the server.
    pub const fn server(&self) -> &ServerNode<RegionStore<M>> {
        &self.server
    }

    /// Returns the medium in the state that the death of the process would leave.
    pub fn into_media(mut self) -> M {
        let log = self.device.hand_over();
        let mut store = self.server.into_store();
        store.region().take_back(log);
        store.into_region().into_media()
    }

    /// Does work on the whole region, including the log.
    fn with_region<T>(
        &mut self,
        work: impl FnOnce(&mut ServerNode<RegionStore<M>>, &mut Outbox) -> T,
    ) -> T {
        let log = self.device.hand_over();
        self.server.store_mut().region().take_back(log);
        let done = work(&mut self.server, &mut self.answers);
        let log: Log<Seat<M>> = self.server.store_mut().region().hand_over();
        self.device.take_back(log);
        done
    }

    /// Takes the buffers that the log has released, except those in which the store has a record. The taken buffers can
    /// then hold copied entries.
    fn recycle(&mut self) {
        if self.device.log().has_released() {
            self.with_region(|server, _| {
                let region = server.store_mut().region();
                while let Some(number) = region.poll_released() {
                    region.give_back_buffer(number);
                }
            });
        }
    }
}

impl<M: Media + Send> Served for StoreDevice<M> {
    type Medium = Seat<M>;

    fn device(&self) -> &DeviceNode<Seat<M>> {
        &self.device
    }

    fn device_mut(&mut self) -> &mut DeviceNode<Seat<M>> {
        &mut self.device
    }

    fn rekey(&mut self, now: Time, keys: ClusterKeys) -> Result<(), DeviceError> {
        self.server.machine_mut().rekey(keys.clone());
        self.device.rekey(now, keys)
    }

    fn receive_with_hops(
        &mut self,
        now: Time,
        from: Peer,
        hops: u8,
        datagram: &[u8],
    ) -> Result<(), DeviceError> {
        if from == SERVER {
            // This packet is forged, because no packet from a network has this address.
            return Ok(());
        }
        self.device.receive_with_hops(now, from, hops, datagram)
    }

    fn receive_in_place(
        &mut self,
        now: Time,
        from: Peer,
        hops: u8,
        frame: &Range<usize>,
    ) -> Result<Taken, DeviceError> {
        if from == SERVER {
            return Ok(Taken::Refused);
        }
        self.device.receive_in_place(now, from, hops, frame)
    }

    fn finish(&mut self, now: Time) -> Result<bool, DeviceError> {
        let worked = self.device.finish(now)?;
        self.device.divert(SERVER, &mut self.handed);
        Ok(worked)
    }

    /// Does the server's part of a turn: the server receives the device's packets, and the store does its next work.
    /// Returns whether more work may be waiting.
    fn work(&mut self, now: Time) -> Result<bool, DeviceError> {
        let stopped = |stop: pmnet_server::Stop| DeviceError::Stopped(stop.0);
        let due = self.server.next_timeout().is_some_and(|at| now >= at);
        if self.handed.is_empty() && !self.again && !due {
            return Ok(false);
        }
        // A packet with a hop count was received from another sender, and is not for the server.
        for place in self.handed.places().filter(|place| place.hops.is_none()) {
            let bytes = match &place.logged {
                Some(frame) => self.device.log().lent(frame),
                None => self.handed.bytes(place.range),
            };
            let received = self.server.receive(now, DEVICE, bytes, &mut self.answers);
            received.map_err(stopped)?;
        }
        self.handed.clear();
        self.again = self
            .with_region(|server, answers| server.step(now, answers))
            .map_err(stopped)?;
        while let Some(notice) = self.server.machine_mut().poll_notice() {
            tracing::warn!("{notice}");
        }
        let answered = !self.answers.is_empty();
        for (_, datagram) in self.answers.iter() {
            self.device.receive(now, SERVER, datagram)?;
        }
        self.answers.clear();
        Ok(self.again || answered)
    }

    fn exchange(&mut self, port: &mut dyn Port) -> io::Result<()> {
        if self.port_has_buffers {
            return self.with_region(|server, _| {
                port.exchange(&mut Exchange(server.store_mut().region()))
            });
        }
        self.recycle();
        Ok(())
    }

    fn rest(&mut self, now: Time) -> Result<Option<Time>, DeviceError> {
        let due = self.device.rest(now)?;
        let again = self.again.then_some(now);
        Ok(earliest(earliest(due, self.server.next_timeout()), again))
    }

    fn close(self) -> Result<(), DeviceError> {
        // The store's data is already durable, so only the device must be closed.
        self.device.close()
    }
}
