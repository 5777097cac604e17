//! Runs a device again and again until the device must end. Each run has the next hop that was ordered last.
//!
//! Orders come from the flags alone, from the chain in etcd ([`FleetOrders`]), or from an operator ([`HandOrders`]). A
//! run is a loop over one log, at the device's [`Place`]. Every source of orders works with every place, with one
//! exception: a device with a store takes no orders yet.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use pmnet_client::Stop;
use pmnet_dataplane::relay::{RelayConfig, can_listen};
use pmnet_device::{DeviceConfig, DeviceError};
use pmnet_fleet::{Facts, Order};
use pmnet_log::{Log, Media};
use pmnet_wire::record::Member;

use super::fleet::FleetOrders;
use super::hand::HandOrders;
use super::settings::{Place, Settings};
use super::{direct, kernel, relay, store, verbs};
use crate::cli::process::Part;
use crate::status::{Beside, DeviceBoard, DeviceWriter, ServerBoard, VerbsBoard};

/// A source of orders. Orders determine a device's next hop, and when the device ends.
pub trait Orders {
    /// Puts the ordered next hop into the configuration of the next run.
    fn wire(&mut self, relay: &mut RelayConfig);

    /// Returns whether the device may serve. This function is called once in each run, when the log is open and the
    /// device has not sent anything.
    fn may_serve(&mut self, log: Facts, stop: &Stop) -> anyhow::Result<bool>;

    /// Returns what must follow after a run. An error ends the device.
    fn after(&mut self, run: anyhow::Result<()>, stop: &Stop) -> anyhow::Result<Then>;

    /// Notes that the device has ended without an error, and acknowledges nothing any more.
    fn ended(self: Box<Self>);
}

/// The next step after a run.
pub enum Then {
    /// The device runs again.
    Again,
    /// The device ends.
    End,
}

/// Orders from the flags alone: the device has one run, with the next hop of its flags.
struct ByFlags;

impl Orders for ByFlags {
    fn wire(&mut self, _: &mut RelayConfig) {}

    fn may_serve(&mut self, _: Facts, _: &Stop) -> anyhow::Result<bool> {
        Ok(true)
    }

    fn after(&mut self, run: anyhow::Result<()>, _: &Stop) -> anyhow::Result<Then> {
        run.map(|()| Then::End)
    }

    fn ended(self: Box<Self>) {}
}

/// Makes the board of a device, and shows it at the status port. `copies`: with fewer copies the device is not ready.
fn board(part: &Part<'_>, copies: &Arc<AtomicU8>, settings: &Settings) -> Arc<DeviceBoard> {
    let device = &settings.relay.device;
    let beside = Beside {
        kernel: settings.kernel().map(|kernel| kernel.name.clone()),
        server: matches!(settings.place, Place::Store(..)).then(|| ServerBoard::new(device.shard)),
        verbs: matches!(settings.place, Place::Verbs(_)).then(VerbsBoard::default),
    };
    let board = DeviceBoard::new(device.shard, device.id, Arc::clone(copies), beside);
    let board = Arc::new(board);
    part.show(board.clone());
    board
}

/// Serves until the process is asked to end. `copies`: with fewer copies the device is not ready.
pub fn serve(
    settings: &Settings,
    copies: &Arc<AtomicU8>,
    stop: &Stop,
    part: &Part<'_>,
) -> anyhow::Result<()> {
    let board = board(part, copies, settings);
    if is_new(settings) {
        // If the device cannot listen, no file may be made for it.
        can_listen(settings.relay.listen, stop)?;
    }
    let mut orders = orders(settings, part)?;
    let mut in_kernel = None;
    let served = loop {
        let mut now = settings.clone();
        now.relay.pulse = Arc::clone(&board.pulse);
        orders.wire(&mut now.relay);
        let writer = DeviceWriter::new(Arc::clone(&board), part.is_shown());
        let may_serve = |log: Facts| orders.may_serve(log, stop);
        let run = match settings.place.clone() {
            Place::Relay => relay::run(now, writer, stop, part, may_serve),
            Place::Direct(direct) => direct::run(now, direct, writer, stop, part, may_serve),
            Place::Verbs(queue) => verbs::run(now, &queue, writer, stop, part, may_serve),
            Place::Kernel(kernel) => {
                kernel::run(&now, &kernel, writer, &mut in_kernel, stop, part, may_serve)
            }
            Place::Store(region, direct) => store::run(now, &region, direct, writer, stop, part),
        };
        match orders.after(run, stop) {
            Ok(Then::Again) => {}
            Ok(Then::End) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    match (in_kernel, settings.kernel()) {
        // Until the lease's deadline, the kernel may answer without this process. So this process does not return the
        // lease, and lets it expire.
        (Some(in_kernel), Some(kernel)) => in_kernel.leave(settings, kernel, served),
        _ => {
            if served.is_ok() {
                orders.ended();
            }
            served
        }
    }
}

/// Returns whether the start of this device will make a new file.
fn is_new(settings: &Settings) -> bool {
    match &settings.place {
        Place::Relay | Place::Direct(_) | Place::Verbs(_) => !settings.path.exists(),
        Place::Kernel(_) => false,
        Place::Store(region, _) => region.is_new(),
    }
}

fn orders(settings: &Settings, part: &Part<'_>) -> anyhow::Result<Box<dyn Orders>> {
    if let Some(fleet) = &settings.fleet {
        let orders = FleetOrders::begin(fleet, &settings.relay, part)?;
        return Ok(Box::new(orders));
    }
    Ok(match HandOrders::begin(settings)? {
        Some(hand) => Box::new(hand),
        None => Box::new(ByFlags),
    })
}

/// Changes the configuration that the flags gave according to this order.
pub fn obey(device: &mut DeviceConfig, order: Order) {
    let Order {
        next,
        next_id,
        shrink,
    } = order;
    device.next = next;
    if let (Some(keys), Some(id)) = (&mut device.keys, next_id) {
        keys.next = id;
    }
    device.flags &= Member::JOIN;
    if shrink.is_some() {
        device.flags |= Member::SHRINK;
    }
    device.word_epoch = shrink;
}

/// Returns the facts about this log that an agent reports.
pub fn facts<M: Media>(log: &Log<M>) -> Facts {
    Facts {
        log: log.identity().log_uuid,
        incarnation: log.incarnation(),
    }
}

/// Returns whether the server has refused the device.
pub fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(DeviceError::Stopped(_)))
}
