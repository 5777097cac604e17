//! A device outside a fleet. `pmnet ctl` may ask for its state, change its next hop, and end it.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pmnet_cli::Family;
use pmnet_client::{Clock, Stop};
use pmnet_dataplane::relay::{Lease, LeaseWords, RelayConfig};
use pmnet_device::DeviceConfig;
use pmnet_fleet::hand::{DeviceDoor, DeviceDoorConfig};
use pmnet_fleet::{Facts, Order};
use pmnet_wire::record::Member;

use super::settings::Settings;
use super::supervisor::{Orders, Then, is_refusal, obey};
use crate::cli::names::{Named, Watch};

/// Opens the door. Returns `None` if the device must not have a door, or if the door cannot be opened. The second case
/// is logged.
fn open(settings: &Settings) -> Option<DeviceDoor> {
    let device = &settings.relay.device;
    let mut listen = settings.relay.listen;
    if let Some(own) = settings.kernel().and_then(|kernel| kernel.own) {
        listen.set_ip(own.into());
    }
    if !settings.ctl || listen.port() == 0 || device.server_reads_log {
        return None;
    }
    let door = DeviceDoor::open(DeviceDoorConfig {
        listen,
        shard: device.shard,
        id: device.id,
        next: device.next,
        next_id: next_id(device),
        by_hand: device.flags & (Member::SHRINK | Member::DECLARE_LOSS) != 0,
        joins: device.flags & Member::JOIN != 0,
        in_kernel: settings.kernel().is_some(),
        keys: settings.keys.as_ref().map(|keys| keys.keys.clone()),
        memory: memory(settings),
    });
    door.inspect_err(|error| {
        tracing::warn!("PM1501 `pmnet ctl` cannot reach this device: TCP {listen}: {error}");
    })
    .ok()
}

/// Returns the id of the device's next hop; `None` if the device has no keys.
pub fn next_id(device: &DeviceConfig) -> Option<u32> {
    device.keys.as_ref().map(|keys| keys.next)
}

/// Returns the path of the file that stores the device's last next hop. The file is in the folder of the log. `None`:
/// the log is not a file.
fn memory(settings: &Settings) -> Option<PathBuf> {
    let is_device =
        std::fs::metadata(&settings.path).is_ok_and(|it| it.file_type().is_char_device());
    if settings.kernel().is_some() || is_device {
        return None;
    }
    let mut path = settings.path.clone().into_os_string();
    path.push(".wiring");
    Some(path.into())
}

/// Orders to a device outside a fleet. An operator changes the next hop with `pmnet ctl`. If `--next` is a name, the
/// next hop also follows the address of the name. Until there is an order, the flags count.
pub struct HandOrders {
    /// The door for `pmnet ctl`. `None`: `pmnet ctl` cannot reach the device.
    door: Option<DeviceDoor>,
    next: Option<MovingHop>,
    id: u32,
    /// Messages to the loop of the present run.
    words: Arc<LeaseWords>,
}

impl HandOrders {
    /// Opens the door, and watches the name of the next hop. Returns `None` if the device has no door and `--next` is
    /// not a name.
    pub fn begin(settings: &Settings) -> anyhow::Result<Option<HandOrders>> {
        let door = open(settings);
        if door.is_none() && settings.next_name.is_none() {
            return Ok(None);
        }
        let device = &settings.relay.device;
        let name = settings.next_name.clone();
        let next = name.map(|name| MovingHop::watch(name, device.next));
        Ok(Some(HandOrders {
            door,
            next: next.transpose()?,
            id: device.id,
            words: Arc::default(),
        }))
    }

    /// Returns whether the server has refused the device for a next hop that has changed since.
    fn is_placed_elsewhere(&self, error: &anyhow::Error) -> bool {
        self.words.is_to_end() && is_refusal(error)
    }
}

impl Orders for HandOrders {
    fn wire(&mut self, relay: &mut RelayConfig) {
        self.words = Arc::default();
        let order = self.door.as_ref().and_then(DeviceDoor::order);
        if let Some(hop) = &self.next {
            // An order of `pmnet ctl` takes precedence over the name.
            let moves = order.is_none().then(|| self.words.clone());
            relay.device.next = hop.attend(moves);
        }
        if let Some(order) = order {
            obey(&mut relay.device, order);
        }
        relay.lease = Some(Lease {
            words: self.words.clone(),
            clock: Clock::start(),
            length: 0,
        });
        if let Some(door) = &self.door {
            let runs = Order {
                next: relay.device.next,
                next_id: order
                    .and_then(|order| order.next_id)
                    .or_else(|| next_id(&relay.device)),
                shrink: order.and_then(|order| order.shrink),
            };
            door.attend(self.words.clone(), runs);
        }
    }

    fn may_serve(&mut self, _: Facts, _: &Stop) -> anyhow::Result<bool> {
        Ok(true)
    }

    fn after(&mut self, run: anyhow::Result<()>, _: &Stop) -> anyhow::Result<Then> {
        let forgets = |door: &DeviceDoor| door.forget_remembered();
        match run {
            Ok(()) => {}
            Err(error) if self.is_placed_elsewhere(&error) => {
                tracing::warn!(
                    "PM1502 {error:#}. This device has a new next hop now, and begins anew"
                );
            }
            Err(error) if is_refusal(&error) && self.door.as_ref().is_some_and(forgets) => {
                tracing::warn!(
                    "PM1503 {error:#}. `pmnet ctl` had wired this device there in an earlier run: from now on its flags count"
                );
                return Ok(Then::Again);
            }
            Err(error) => return Err(error),
        }
        let leaves = self.door.as_ref().is_some_and(DeviceDoor::leaves);
        Ok(match leaves || !self.words.is_to_end() {
            true => Then::End,
            false => Then::Again,
        })
    }

    fn ended(self: Box<Self>) {
        if let Some(door) = self.door.filter(DeviceDoor::leaves) {
            tracing::warn!(
                "PM1504 device {} has ended, as `pmnet ctl` asked it to: it leaves its chain. With --join it can be a spare again",
                self.id
            );
            door.left();
        }
    }
}

/// Time without a message from the next hop after which the next hop counts as silent. A device without other traffic
/// sends a question to its next hop once a second.
const SILENT_AFTER: Duration = Duration::from_millis(3_500);
const LOOKED_EVERY: Duration = Duration::from_millis(250);

/// The address of the next hop, and the handle that can end the present run of the device's loop. The run is ended when
/// the name of the next hop has another address. `None`: the run has no handle.
type Place = (SocketAddr, Option<Arc<LeaseWords>>);

/// The next hop of a device whose `--next` is a name. If the next hop is silent and the name has another address, the
/// device starts again with this address.
struct MovingHop {
    place: Arc<Mutex<Place>>,
    _watch: Watch,
}

impl MovingHop {
    fn watch(name: Named, next: SocketAddr) -> anyhow::Result<MovingHop> {
        let place: Arc<Mutex<Place>> = Arc::new(Mutex::new((next, None)));
        let own = place.clone();
        let text = format!("{}:{}", name.host, name.port);
        let watch = Watch::start(vec![name], move |found| {
            let look = || own.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let (next, words) = look();
            // The device's socket keeps its family.
            let fitting = Family::of(&next).first(&found[0]);
            let Some(at) = fitting.filter(|_| !found[0].contains(&next)) else {
                return;
            };
            if words.as_ref().is_some_and(|words| answers(words)) {
                return;
            }
            let mut place = own.lock().unwrap_or_else(PoisonError::into_inner);
            let same = |now: &Place| match (&now.1, &words) {
                (Some(now), Some(then)) => Arc::ptr_eq(now, then),
                (now, then) => now.is_none() && then.is_none(),
            };
            if !same(&place) {
                // Another run has begun in the meantime.
                return;
            }
            tracing::warn!(
                "PM1505 --next {text} is silent at {next}, and has the address {at} now: this device starts anew with that address"
            );
            place.0 = at;
            if let Some(words) = words {
                words.end();
            }
        })?;
        Ok(MovingHop {
            place,
            _watch: watch,
        })
    }

    /// Returns the address of the next hop. `words`: the messages to the run that begins now. If messages are given,
    /// the run ends when the name has another address.
    fn attend(&self, words: Option<Arc<LeaseWords>>) -> SocketAddr {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.1 = words;
        place.0
    }
}

/// Returns whether the next hop has sent a message since the last call, or sends a message within [`SILENT_AFTER`].
fn answers(words: &LeaseWords) -> bool {
    let looks = SILENT_AFTER.as_millis() / LOOKED_EVERY.as_millis();
    words.next_spoke()
        || (0..looks).any(|_| {
            std::thread::sleep(LOOKED_EVERY);
            words.next_spoke()
        })
}
