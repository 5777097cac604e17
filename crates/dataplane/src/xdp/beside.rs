//! The devices at one interface: the pipeline of each device is pinned in the interface's folder, and all devices share
//! one link to the interface.
//!
//! Invariants: the pins determine which devices are at the interface. [`Interface::settle`] makes the link agree with
//! the pins, even after a change that was interrupted at any step. If there is only one device, its pipeline is
//! attached directly; for two or more devices the dispatcher is attached. The link changes from one program to the next
//! without a gap, and the pins of the old program are removed afterwards. So if a process is killed at any step, the
//! other devices still answer. Only one process at a time changes an interface, under the lock of the interface's
//! folder. Spec: `docs/spec/pipeline.md` §9. This module must not know the contents of a device's maps.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aya::programs::links::{FdLink, PinnedLink};

use aya::programs::{Xdp, XdpMode};
use aya_obj::programs::XdpAttachType;
use rustix::fs::{FlockOperation, flock};

use super::dispatcher::Dispatcher;
use super::error::KernelError;
use super::folder;
use super::links;
use super::pins::Pins;
use super::shared::DEVICES_MAX;

/// Folder with the folders of all interfaces, next to the folders of the devices.
const ROOT: &str = "/sys/fs/bpf/pmnet-at";
/// The network namespace of the calling thread.
const NAMESPACE: &str = "/proc/thread-self/ns/net";
/// Names of the link's pin in the driver's mode and in the generic mode.
const LINKS: [&str; 2] = ["link", "link_generic"];
/// First part of the name of the pin of a dispatcher's array of programs. A number follows it.
const PROGRAMS: &str = "programs-";
/// Name of a pipeline's pin before it gets its final name.
const PART: &str = "part";
/// Longest wait for the lock. A change of an interface takes only milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Function that is called before each step of a change, with the step's name. Tests kill the process there.
pub type Steps<'a> = &'a mut dyn FnMut(&'static str);

/// One interface, as its folder describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    folder: PathBuf,
}

/// A device that is at the interface, or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub port: u16,
    pub device: String,
}

impl Member {
    fn file(&self) -> String {
        format!("{}-{}", self.port, self.device)
    }

    fn read(file: &str) -> Option<Member> {
        let (port, device) = file.split_once('-')?;
        Some(Member {
            port: port.parse().ok()?,
            device: device.to_owned(),
        })
    }

    fn lives(&self) -> bool {
        Pins::existing(&self.device).in_use()
    }
}

/// Where a new link is made, if there is no link yet.
struct Place<'a> {
    interface: &'a str,
    generic: bool,
}

impl Interface {
    /// Returns the interface with this name in the calling thread's network namespace. The name of its folder is the
    /// interface's index, because the interface's name can change.
    pub(super) fn named(name: &str) -> Result<Interface, KernelError> {
        let namespace =
            std::fs::metadata(NAMESPACE).map_err(|error| KernelError::io(NAMESPACE, error))?;
        let index = nix::net::if_::if_nametoindex(name)
            .map_err(|error| KernelError::io(format!("interface {name}"), error.into()))?;
        Ok(Interface {
            folder: Path::new(ROOT).join(format!("{}-{index}", namespace.ino())),
        })
    }

    /// Returns the interface that has this folder.
    pub(super) const fn of(folder: PathBuf) -> Interface {
        Interface { folder }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether this device is at the interface, and the interface exists.
    pub(super) fn has(&self, device: &str) -> bool {
        let here = self.members().iter().any(|one| one.device == device);
        here && self.link().is_some() && !self.is_severed()
    }

    /// Attaches a device. If the device is already attached, its pipeline is replaced.
    ///
    /// # Errors
    /// [`KernelError`]; in this case the earlier state is kept.
    pub(super) fn join(
        &self,
        interface: &str,
        member: &Member,
        pipeline: &mut Xdp,
        generic: bool,
        step: Steps<'_>,
    ) -> Result<(), KernelError> {
        let _lock = self.lock()?;
        if self.is_severed() {
            // The folder belongs to an interface that no longer exists. Its index was given to another interface, which
            // has no device yet.
            step("clear");
            self.clear()?;
        }
        let (own, others): (Vec<Member>, Vec<Member>) = self
            .members()
            .into_iter()
            .filter(Member::lives)
            .partition(|one| one.device == member.device);
        self.admit(interface, member, &others, generic)?;
        if let Some((link, mode)) = self.link()
            && mode != generic
        {
            step("leave the other mode");
            links::detach(&link);
            self.remove(&link)?;
        }
        let part = self.folder.join(PART);
        self.remove(&part)?;
        step("pin");
        let failed = |error| KernelError::pin(part.display().to_string(), error);
        pipeline.pin(&part).map_err(failed)?;
        step("name");
        let path = self.folder.join(member.file());
        std::fs::rename(&part, &path).map_err(|error| KernelError::file(&path, error))?;
        for old in own.iter().filter(|old| *old != member) {
            step("forget the old port");
            self.remove(&self.folder.join(old.file()))?;
        }
        let place = Place { interface, generic };
        let settled = self.settle(Some(&place), step);
        if settled.is_err() && own.is_empty() {
            // The device was not attached before. The first error is reported, even if the removal fails, too.
            let _ = self.remove(&path);
            let _ = self.settle(None, step);
        }
        settled
    }

    /// Checks that this device can be at the interface together with the other devices.
    fn admit(
        &self,
        interface: &str,
        member: &Member,
        others: &[Member],
        generic: bool,
    ) -> Result<(), KernelError> {
        if let Some(other) = others.iter().find(|other| other.port == member.port) {
            return Err(KernelError::PortTaken {
                interface: interface.to_owned(),
                port: member.port,
                device: other.device.clone(),
            });
        }
        if others.len() >= DEVICES_MAX {
            return Err(KernelError::Crowded(interface.to_owned()));
        }
        match self.link() {
            Some((_, mode)) if mode != generic && !others.is_empty() => {
                Err(KernelError::OtherMode(interface.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Detaches a device. If the device was not attached, the call only completes an earlier, interrupted change.
    ///
    /// # Errors
    /// [`KernelError`].
    pub(super) fn leave(&self, device: &str, step: Steps<'_>) -> Result<(), KernelError> {
        if !self.folder.exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        for own in self.members().iter().filter(|one| one.device == device) {
            step("forget");
            self.remove(&self.folder.join(own.file()))?;
        }
        self.settle(None, step)
    }

    /// Makes the link agree with the pinned devices, and removes pins that are no longer needed. The folder is removed
    /// together with the last device.
    fn settle(&self, place: Option<&Place<'_>>, step: Steps<'_>) -> Result<(), KernelError> {
        // If the interface no longer exists, no device is at it.
        let is_there = !self.is_severed();
        let (here, gone): (Vec<Member>, Vec<Member>) = self
            .members()
            .into_iter()
            .partition(|one| is_there && one.lives());
        for one in gone {
            self.remove(&self.folder.join(one.file()))?;
        }
        let arrays = self.files(|file| file.starts_with(PROGRAMS));
        match &here[..] {
            [] => {
                step("detach");
                self.clear()?;
                return std::fs::remove_dir(&self.folder)
                    .map_err(|error| KernelError::file(&self.folder, error));
            }
            [one] => self.attach(&mut self.pipeline(one)?, place, step)?,
            _ => self.dispatch(&here, &arrays, place, step)?,
        }
        for array in arrays {
            step("remove the old programs");
            self.remove(&self.folder.join(array))?;
        }
        Ok(())
    }

    fn dispatch(
        &self,
        here: &[Member],
        arrays: &[String],
        place: Option<&Place<'_>>,
        step: Steps<'_>,
    ) -> Result<(), KernelError> {
        let pipelines: Vec<Xdp> = here
            .iter()
            .map(|one| self.pipeline(one))
            .collect::<Result<_, _>>()?;
        let mut devices = Vec::with_capacity(here.len());
        for (one, pipeline) in here.iter().zip(&pipelines) {
            let fd = pipeline.fd().map_err(|source| KernelError::Program {
                name: "pipeline",
                source,
            })?;
            devices.push((one.port, fd));
        }
        step("load");
        let mut dispatcher = Dispatcher::load(&devices)?;
        let number = |file: &String| file.strip_prefix(PROGRAMS)?.parse::<u64>().ok();
        let next = arrays.iter().filter_map(number).max().unwrap_or(0) + 1;
        let array = self.folder.join(format!("{PROGRAMS}{next}"));
        step("pin the programs");
        dispatcher.pin(&array)?;
        let attached = self.attach(dispatcher.program()?, place, step);
        if attached.is_err() {
            let _ = self.remove(&array);
        }
        attached
    }

    /// Replaces the attached program, or attaches the first program at `place`. If there is no link and no `place`, no
    /// program was ever attached, and nothing is done.
    fn attach(
        &self,
        program: &mut Xdp,
        place: Option<&Place<'_>>,
        step: Steps<'_>,
    ) -> Result<(), KernelError> {
        let failed = |source| KernelError::Program {
            name: "pipeline",
            source,
        };
        if let Some((path, _)) = self.link() {
            step("replace");
            let link: FdLink = PinnedLink::from_pin(&path)?.into();
            let id = program.attach_to_link(link.try_into()?).map_err(failed)?;
            // The pin keeps the link alive.
            return program.take_link(id).map(drop).map_err(failed);
        }
        let Some(place) = place else {
            return Ok(());
        };
        step("attach");
        let mode = if place.generic {
            XdpMode::Skb
        } else {
            XdpMode::Driver
        };
        let id = program.attach(place.interface, mode).map_err(failed)?;
        let link: FdLink = program.take_link(id).map_err(failed)?.try_into()?;
        step("pin the link");
        let path = self.folder.join(LINKS[usize::from(place.generic)]);
        link.pin(&path)
            .map(drop)
            .map_err(|error| KernelError::pin(path.display().to_string(), error))
    }

    fn pipeline(&self, member: &Member) -> Result<Xdp, KernelError> {
        let path = self.folder.join(member.file());
        Xdp::from_pin(path, XdpAttachType::Interface).map_err(|source| KernelError::Program {
            name: "pipeline",
            source,
        })
    }

    /// Returns the path of the link's pin, and whether it is in the generic mode.
    fn link(&self) -> Option<(PathBuf, bool)> {
        let paths = LINKS.map(|name| self.folder.join(name));
        let found = paths.into_iter().zip([false, true]);
        found.into_iter().find(|(path, _)| path.exists())
    }

    /// Returns whether there is a link whose interface no longer exists.
    fn is_severed(&self) -> bool {
        self.link()
            .is_some_and(|(link, _)| links::is_severed(&link))
    }

    /// Returns the devices at the interface, in the order of their ports.
    fn members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = self
            .files(|_| true)
            .iter()
            .filter_map(|file| Member::read(file))
            .collect();
        members.sort_by_key(|one| one.port);
        members
    }

    fn files(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|file| wanted(file))
            .collect()
    }

    /// Detaches the program, and removes all pins of the interface, first the pin of the link.
    fn clear(&self) -> Result<(), KernelError> {
        for name in LINKS {
            let link = self.folder.join(name);
            links::detach(&link);
            self.remove(&link)?;
        }
        for file in self.files(|_| true) {
            self.remove(&self.folder.join(file))?;
        }
        Ok(())
    }

    /// Removes a pin, if it exists.
    fn remove(&self, path: &Path) -> Result<(), KernelError> {
        debug_assert!(path.file_name() != Some(OsStr::new("")) && path.starts_with(&self.folder));
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(KernelError::file(path, error))
            }
            _ => Ok(()),
        }
    }

    /// Takes the lock under which an interface is changed. Makes the interface's folder if needed.
    fn lock(&self) -> Result<File, KernelError> {
        let failed = |error| KernelError::file(&self.folder, error);
        let until = Instant::now() + LOCK_WAIT;
        while Instant::now() < until {
            folder::make(&self.folder)?;
            let folder = match File::open(&self.folder) {
                Ok(folder) => folder,
                // The last device has just left, and its process has removed the folder.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
                std::thread::sleep(LOCK_PAUSE);
                continue;
            }
            // If the folder was removed meanwhile, its lock does not protect a new folder with the same name.
            let own = folder.metadata().map_err(failed)?;
            if std::fs::metadata(&self.folder).is_ok_and(|now| now.ino() == own.ino()) {
                return Ok(folder);
            }
        }
        Err(KernelError::Contended(self.folder.clone()))
    }
}
