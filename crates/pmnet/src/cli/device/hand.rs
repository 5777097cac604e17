//! A device outside a fleet: `pmnet ctl` may ask it where it stands, wire it anew, and let it end.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use pmnet_client::{Clock, Stop};
use pmnet_dataplane::relay::{Lease, LeaseWords};
use pmnet_dataplane::xdp::Found;
use pmnet_device::DeviceError;
use pmnet_fleet::Order;
use pmnet_fleet::hand::{DeviceDoor, DeviceDoorConfig};
use pmnet_wire::record::Member;

use super::relay::{open_log, run_relay};
use super::settings::Settings;
use super::{direct, kernel};
use crate::cli::names::{Named, Watch};

/// Opens the door; `None`: there is to be none, or there can be none, which is said.
pub fn open(settings: &Settings) -> Option<DeviceDoor> {
    let device = &settings.relay.device;
    let mut listen = settings.relay.listen;
    if let Some(own) = settings.kernel.as_ref().and_then(|kernel| kernel.own) {
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
        by_hand: device.flags & (Member::SHRINK | Member::DECLARE_LOSS) != 0,
        joins: device.flags & Member::JOIN != 0,
        in_kernel: settings.kernel.is_some(),
        memory: memory(settings),
    });
    door.inspect_err(|error| {
        tracing::warn!("`pmnet ctl` cannot reach this device: TCP {listen}: {error}");
    })
    .ok()
}

/// Where it remembers how it was wired last: beside its log, if that is a file.
fn memory(settings: &Settings) -> Option<PathBuf> {
    let is_device =
        std::fs::metadata(&settings.path).is_ok_and(|it| it.file_type().is_char_device());
    if settings.kernel.is_some() || is_device {
        return None;
    }
    let mut path = settings.path.clone().into_os_string();
    path.push(".wiring");
    Some(path.into())
}

/// What this process found in the kernel at first, and whether it served there.
struct InKernel {
    found: Found,
    was_serving: bool,
}

/// Serves until asked to end: as its flags say, or, if a person has said otherwise since, as they did; and again from the start
/// whenever they say something else.
pub fn serve(
    settings: &Settings,
    door: Option<DeviceDoor>,
    stop: &Stop,
    json: bool,
) -> anyhow::Result<()> {
    let mut in_kernel = None;
    let moving = settings.next_name.clone().map(|name| {
        let next = settings.relay.device.next;
        MovingHop::watch(name, next)
    });
    let moving = moving.transpose()?;
    let served = loop {
        let words = Arc::new(LeaseWords::default());
        let mut now = settings.clone();
        let order = door.as_ref().and_then(DeviceDoor::order);
        if let Some(moving) = &moving {
            // An order of `pmnet ctl` is newer than the name, and counts.
            let moves = order.is_none().then(|| words.clone());
            now.relay.device.next = moving.attend(moves);
        }
        if let Some(order) = order {
            obey(&mut now, order);
        }
        let device = &now.relay.device;
        let runs = Order {
            next: device.next,
            shrink: order.and_then(|order| order.shrink),
        };
        now.relay.lease = Some(Lease {
            words: words.clone(),
            clock: Clock::start(),
            length: 0,
        });
        if let Some(door) = &door {
            door.attend(words.clone(), runs);
        }
        let run = if settings.kernel.is_some() {
            run_in_kernel(&now, stop, json, &mut in_kernel)
        } else if settings.direct.is_some() {
            direct::serve(now, stop, json)
        } else {
            run_once(now, stop, json)
        };
        match run {
            // It was refused in a place that it has no more.
            Err(error) if words.is_to_end() && is_refusal(&error) => {
                tracing::warn!("{error:#}. It is wired otherwise now, and begins anew");
            }
            Err(error)
                if is_refusal(&error)
                    && door.as_ref().is_some_and(DeviceDoor::forget_remembered) =>
            {
                tracing::warn!(
                    "{error:#}. It was wired there by `pmnet ctl` in an earlier life: that is over, and its flags count"
                );
                continue;
            }
            Err(error) => break Err(error),
            Ok(()) => {}
        }
        let leaves = door.as_ref().is_some_and(DeviceDoor::leaves);
        if leaves || !words.is_to_end() {
            break Ok(());
        }
    };
    if let Some(InKernel { found, was_serving }) = in_kernel {
        return kernel::leave(settings, found, was_serving, served);
    }
    if served.is_ok()
        && let Some(door) = door.filter(DeviceDoor::leaves)
    {
        tracing::warn!(
            "device {} has ended, as `pmnet ctl` asked it to: it leaves its chain. With --join it can be a spare again",
            settings.relay.device.id
        );
        door.left();
    }
    served
}

/// How often a next hop is asked before it counts as silent, and how long each time.
const ASKED: u32 = 6;
const ASKED_FOR: Duration = Duration::from_millis(250);

/// A next hop, and the words of the loop that sends to it. The loop ends when the hop has moved.
type Place = (SocketAddr, Option<Arc<LeaseWords>>);

/// The next hop of a device whose `--next` is a name. If the hop is silent, also when it is asked, and the name has another address now, the device is wired anew.
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
            let mut fitting = found[0].iter().filter(|at| at.is_ipv4() == next.is_ipv4());
            let Some(at) = fitting.next().filter(|_| !found[0].contains(&next)) else {
                return;
            };
            // A device that has nothing to send gets no packets.
            if words.as_ref().is_some_and(|words| answers(words)) {
                return;
            }
            let mut place = own.lock().unwrap_or_else(PoisonError::into_inner);
            let same = |now: &Place| match (&now.1, &words) {
                (Some(now), Some(then)) => Arc::ptr_eq(now, then),
                (now, then) => now.is_none() && then.is_none(),
            };
            if !same(&place) {
                // The loop has begun anew meanwhile.
                return;
            }
            tracing::warn!(
                "--next {text} is silent at {next}, and has the address {at} now: this device starts anew with that address"
            );
            place.0 = *at;
            if let Some(words) = words {
                words.end();
            }
        })?;
        Ok(MovingHop {
            place,
            _watch: watch,
        })
    }

    /// Where it is. `words`: of the run that begins now, if it is to be ended when the hop is elsewhere.
    fn attend(&self, words: Option<Arc<LeaseWords>>) -> SocketAddr {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.1 = words;
        place.0
    }
}

/// Whether the next hop has spoken lately, or speaks when it is asked. If it does not, this takes the time of all questions.
fn answers(words: &LeaseWords) -> bool {
    words.next_spoke()
        || (0..ASKED).any(|_| {
            words.ask_next();
            std::thread::sleep(ASKED_FOR);
            words.next_spoke()
        })
}

fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(DeviceError::Stopped(_)))
}

/// The settings as a person has said while the device ran, in place of what the command line does.
fn obey(settings: &mut Settings, order: Order) {
    let device = &mut settings.relay.device;
    device.next = order.next;
    device.flags &= Member::JOIN;
    if order.shrink.is_some() {
        device.flags |= Member::SHRINK;
    }
    device.word_epoch = order.shrink;
}

fn run_once(settings: Settings, stop: &Stop, json: bool) -> anyhow::Result<()> {
    let (log, _) = open_log(&settings)
        .with_context(|| format!("cannot use the log {}", settings.path.display()))?;
    run_relay(settings.relay, log, None, stop, json, || ())
}

/// The first run takes the device over as it is. Later ones begin anew, so that another device may join behind it.
fn run_in_kernel(
    settings: &Settings,
    stop: &Stop,
    json: bool,
    state: &mut Option<InKernel>,
) -> anyhow::Result<()> {
    let taken = kernel::take(settings, state.is_some())?;
    let state = state.get_or_insert(InKernel {
        found: taken.found(),
        was_serving: false,
    });
    taken.run(settings, stop, json, || state.was_serving = true)
}
