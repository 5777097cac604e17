//! Safe types for a NIC with RDMA. An object is closed when its last user is dropped. Memory stays allocated as long as
//! the NIC may use it.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use pmnet_media::Memory;

use crate::ffi::{self, Library, library, mask};

/// Maximum number of completions that one [`Completions::poll`] returns.
pub const POLL_MAX: usize = 64;
/// The only port that is used: with RoCE, an adapter with two ports appears as two RDMA devices.
const PORT: u8 = 1;
/// Maximum number of READs of one QP that may be under way.
const READS_MAX: u8 = 16;
/// Hop limit of packets.
const HOPS: u8 = 64;
/// Time without an answer after which the NIC sends again: 4.096 µs · 2^14 = 67 ms.
const TIMEOUT: u8 = 14;
/// Number of times that the NIC sends again.
const RETRIES: u8 = 7;
/// 7 means no limit: a receiver without posted slots does not break the QP.
const RNR_RETRIES: u8 = 7;
/// Time that a sender waits if no slot is posted: 12 means 0.64 ms.
const RNR_TIMER: u8 = 12;

/// A failure of a NIC, or of a request to it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NicError(String);

impl NicError {
    /// Returns an error with this sentence and the system's last error.
    fn system(what: &str) -> NicError {
        NicError(format!("{what}: {}", io::Error::last_os_error()))
    }

    /// Returns an error with this sentence.
    pub(crate) fn said(what: &str) -> NicError {
        NicError(what.to_owned())
    }

    fn code(what: &str, code: c_int) -> NicError {
        NicError(format!("{what}: {}", io::Error::from_raw_os_error(code)))
    }
}

/// A QP's address, for its partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereto {
    /// Number of the QP.
    pub qpn: u32,
    /// Number of the QP's first packet (24 bits).
    pub psn: u32,
    /// Address of the QP's NIC.
    pub gid: [u8; 16],
}

/// An asynchronous event of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicEvent {
    /// A broken QP (identified by its address in memory) takes no more slots, and all its completions have arrived.
    LastTaken(usize),
    /// The NIC, its completion queue or its queue of slots has failed.
    Broken(&'static str),
    /// Any other event.
    Other,
}

struct Opened {
    library: &'static Library,
    context: NonNull<ffi::Context>,
    pd: NonNull<ffi::Pd>,
    name: String,
    gids: u8,
    gid_index: u8,
    gid: [u8; 16],
    mtu: u32,
    reads_max: u8,
    slots_max: u32,
    completions_max: u32,
}

// SAFETY: libibverbs may be called from any thread; its objects have locks of their own.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: all objects that were made from these hold an `Arc` of this value, so no such object exists any more.
        unsafe {
            (self.library.ibv_dealloc_pd)(self.pd.as_ptr());
            (self.library.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// An opened NIC.
#[derive(Clone)]
pub struct Nic(Arc<Opened>);

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nic").field(&self.0.name).finish()
    }
}

impl Nic {
    /// Opens the RDMA device with this name. Its packets carry `address`, which must belong to one of the device's
    /// network interfaces.
    ///
    /// # Errors
    /// [`NicError`] says what is missing.
    pub fn open(name: &str, address: IpAddr) -> Result<Nic, NicError> {
        let library = library().map_err(NicError)?;
        let context = open_named(library, name)?;
        // SAFETY: the context was just opened.
        let pd = NonNull::new(unsafe { (library.ibv_alloc_pd)(context.as_ptr()) });
        let Some(pd) = pd else {
            let error = NicError::system("the RDMA device gives no protection domain");
            // SAFETY: nothing was made from the context.
            unsafe { (library.ibv_close_device)(context.as_ptr()) };
            return Err(error);
        };
        // From here on, the context is closed when this value is dropped.
        let mut opened = Opened {
            library,
            context,
            pd,
            name: name.to_owned(),
            gids: 0,
            gid_index: 0,
            gid: [0; 16],
            mtu: 0,
            reads_max: 1,
            slots_max: 0,
            completions_max: 0,
        };
        opened.look()?;
        opened.find_gid(address)?;
        unblock(opened.async_fd())?;
        Ok(Nic(Arc::new(opened)))
    }

    /// Returns the device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the largest payload of a packet, in bytes: 256 to 4096. Two partners use the smaller of their two
    /// values.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.0.mtu
    }

    /// Returns the NIC's RDMA address.
    #[must_use]
    pub fn gid(&self) -> [u8; 16] {
        self.0.gid
    }

    /// Returns the descriptor that becomes readable when [`Nic::next_event`] has an event.
    #[must_use]
    pub fn event_fd(&self) -> RawFd {
        self.0.async_fd()
    }

    /// Returns the next event of the NIC, if there is one.
    #[must_use]
    pub fn next_event(&self) -> Option<NicEvent> {
        let mut event = ffi::AsyncEvent {
            element: null_mut(),
            event_type: 0,
        };
        // SAFETY: the context is open, and the descriptor does not block.
        let got = unsafe {
            (self.0.library.ibv_get_async_event)(self.0.context.as_ptr(), &raw mut event)
        };
        if got != 0 {
            return None;
        }
        let said = match event.event_type {
            ffi::EVENT_LAST_WQE_REACHED => NicEvent::LastTaken(event.element.addr()),
            ffi::EVENT_CQ_ERR => NicEvent::Broken("its queue of completions has overflowed"),
            ffi::EVENT_SRQ_ERR => NicEvent::Broken("its queue of slots has failed"),
            ffi::EVENT_DEVICE_FATAL => NicEvent::Broken("it has failed"),
            _ => NicEvent::Other,
        };
        // SAFETY: the event was returned above, and is acknowledged once.
        unsafe { (self.0.library.ibv_ack_async_event)(&raw mut event) };
        Some(said)
    }

    fn register(&self, start: *mut u8, len: usize, remote: c_int) -> Result<Registered, NicError> {
        let access = ffi::ACCESS_LOCAL_WRITE | remote;
        // SAFETY: the memory has `len` bytes from `start`. The caller keeps the memory as long as the returned value
        // exists.
        let mr =
            unsafe { (self.0.library.ibv_reg_mr)(self.0.pd.as_ptr(), start.cast(), len, access) };
        let mr = NonNull::new(mr).ok_or_else(|| {
            NicError::system(
                "the kernel registers no RDMA memory there (it does in tmpfs, hugetlbfs and devdax, not in a file on fsdax; \
                 ulimit -l must allow it)",
            )
        })?;
        Ok(Registered {
            nic: self.clone(),
            mr,
        })
    }
}

/// Returns the context of the device with this name.
fn open_named(library: &Library, name: &str) -> Result<NonNull<ffi::Context>, NicError> {
    let mut count = 0;
    // SAFETY: both pointers are valid; the list is freed below, once.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(NicError::system("there are no RDMA devices"));
    }
    let mut names = Vec::new();
    let mut opened = None;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices, and is not freed yet.
        unsafe {
            let device = *list.add(at);
            let found = ffi::name_of(library, device);
            if found == name {
                opened = Some(NonNull::new((library.ibv_open_device)(device)));
            }
            names.push(found);
        }
    }
    let failed = NicError::system("cannot open the RDMA device");
    // SAFETY: this is the list as the library returned it. An opened device stays valid.
    unsafe { (library.ibv_free_device_list)(list) };
    match opened {
        Some(Some(context)) => Ok(context),
        Some(None) => Err(failed),
        None if names.is_empty() => Err(NicError(format!(
            "there is no RDMA device {name}, nor any other: rdma link shows them"
        ))),
        None => Err(NicError(format!(
            "there is no RDMA device {name}; there is {}",
            names.join(", ")
        ))),
    }
}

/// Makes a descriptor non-blocking.
fn unblock(fd: RawFd) -> Result<(), NicError> {
    // SAFETY: these two calls change a flag of an open descriptor.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    done.then_some(())
        .ok_or_else(|| NicError::system("the RDMA device cannot be used without blocking"))
}

impl Opened {
    fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    /// Reads the NIC's capabilities.
    fn look(&mut self) -> Result<(), NicError> {
        let mut port = ffi::PortAttr::default();
        // SAFETY: the attributes are plain numbers, and the struct is at least as large as the part that the library
        // fills.
        let mut device: ffi::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open.
        let codes = unsafe {
            let context = self.context.as_ptr();
            [
                (self.library.ibv_query_device)(context, &raw mut device),
                (self.library.ibv_query_port)(context, PORT, &raw mut port),
            ]
        };
        if let Some(code) = codes.into_iter().find(|code| *code != 0) {
            return Err(NicError::code(
                "the RDMA device does not say what it can",
                code,
            ));
        }
        if port.state != ffi::PORT_ACTIVE {
            return Err(NicError(format!(
                "port {PORT} of {} is not active: its network interface must be up",
                self.name
            )));
        }
        let positive = |number: c_int| u32::try_from(number).unwrap_or(0);
        self.gids = u8::try_from(port.gid_tbl_len).unwrap_or(u8::MAX);
        self.mtu = 128 << port.active_mtu.clamp(1, 5);
        self.reads_max = u8::try_from(device.max_qp_rd_atom)
            .unwrap_or(1)
            .clamp(1, READS_MAX);
        self.slots_max = positive(device.max_srq_wr);
        self.completions_max = positive(device.max_cqe);
        if device.max_srq <= 0 {
            return Err(NicError(format!(
                "{} has no shared receive queues",
                self.name
            )));
        }
        Ok(())
    }

    /// Finds the RoCE v2 entry of the GID table that has this address.
    fn find_gid(&mut self, address: IpAddr) -> Result<(), NicError> {
        let wanted = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        for index in 0..self.gids {
            let mut gid = [0u64; 2];
            let place = c_int::from(index);
            // SAFETY: the context is open, and a GID has 16 bytes.
            let code = unsafe {
                (self.library.ibv_query_gid)(self.context.as_ptr(), PORT, place, &raw mut gid)
            };
            if code != 0 {
                // Some drivers return an error for an empty entry.
                continue;
            }
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&gid[0].to_ne_bytes());
            bytes[8..].copy_from_slice(&gid[1].to_ne_bytes());
            let kind = format!(
                "/sys/class/infiniband/{}/ports/{PORT}/gid_attrs/types/{index}",
                self.name
            );
            let kind = std::fs::read_to_string(kind).unwrap_or_default();
            if bytes == wanted && kind.trim() == "RoCE v2" {
                (self.gid_index, self.gid) = (index, bytes);
                return Ok(());
            }
        }
        Err(NicError(format!(
            "{} cannot send from {address} (RoCE v2): its network interface does not have that address",
            self.name
        )))
    }
}

/// Memory that is registered with the NIC.
struct Registered {
    nic: Nic,
    mr: NonNull<ffi::Mr>,
}

// SAFETY: as for `Opened`.
unsafe impl Send for Registered {}
// SAFETY: as for `Opened`.
unsafe impl Sync for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the memory was registered once, and all its users hold an `Arc` of this value.
        unsafe { (self.nic.0.library.ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

impl Registered {
    fn keys(&self) -> (u32, u32) {
        // SAFETY: the memory is registered.
        let mr = unsafe { self.mr.as_ref() };
        (mr.lkey, mr.rkey)
    }
}

/// Length of the memory that partners may read. It is the beginning of the slots' memory, which tells nothing about
/// messages.
const READABLE: usize = 64;

/// The memory of slots. The NIC stores messages into posted slots. Partners may read only its first bytes.
#[derive(Clone)]
pub struct SlotMemory {
    registered: Arc<Registered>,
    head: Arc<Registered>,
    memory: Memory,
}

impl SlotMemory {
    /// Registers the memory with the NIC.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn register(nic: &Nic, memory: Memory) -> Result<SlotMemory, NicError> {
        let registered = nic.register(memory.start(), memory.len(), 0)?;
        let head = memory.len().min(READABLE);
        let head = nic.register(memory.start(), head, ffi::ACCESS_REMOTE_READ)?;
        Ok(SlotMemory {
            registered: Arc::new(registered),
            head: Arc::new(head),
            memory,
        })
    }

    /// Returns the address and key with which a partner reads a byte there.
    #[must_use]
    pub fn readable(&self) -> Readable {
        let at = u64::try_from(self.memory.start().addr()).expect("64 bits");
        Readable {
            at,
            key: self.head.keys().1,
        }
    }
}

/// The place of a byte that a partner can read by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable {
    /// Address of the byte in its owner's memory.
    pub at: u64,
    /// Remote key of the memory that has the byte.
    pub key: u32,
}

/// Memory of this process from which the NIC sends.
struct Buffers {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its memory, like a vector.
unsafe impl Send for Buffers {}
// SAFETY: as above; only a mutable reference can change the memory.
unsafe impl Sync for Buffers {}

impl Buffers {
    fn new(bytes: usize) -> Buffers {
        let layout = Layout::from_size_align(bytes.max(1), 4096).expect("a few megabytes");
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Buffers { start, layout }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and is freed once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Id of the work request; for a slot, the number of the message.
    pub id: u64,
    /// Number of the QP.
    pub qpn: u32,
    /// Length of the message in bytes, or the number of the error.
    pub outcome: Result<u32, u32>,
}

/// A completion queue, and the channel that signals completions.
struct CompletionQueue {
    nic: Nic,
    cq: NonNull<ffi::Cq>,
    channel: NonNull<ffi::CompChannel>,
}

// SAFETY: as for `Opened`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for `Opened`.
unsafe impl Sync for CompletionQueue {}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: QPs hold an `Arc` of this value, and all of the queue's events were acknowledged when they were
        // taken.
        unsafe {
            (self.nic.0.library.ibv_destroy_cq)(self.cq.as_ptr());
            (self.nic.0.library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// A completion queue.
#[derive(Clone)]
pub struct Completions(Arc<CompletionQueue>);

impl Completions {
    /// Creates a queue for this number of completions.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn new(nic: &Nic, entries: u32) -> Result<Completions, NicError> {
        let (library, context) = (nic.0.library, nic.0.context.as_ptr());
        if entries > nic.0.completions_max {
            return Err(NicError(format!(
                "{} takes {} completions, and {entries} are needed: use fewer slots",
                nic.name(),
                nic.0.completions_max
            )));
        }
        // SAFETY: the context is open.
        let channel = NonNull::new(unsafe { (library.ibv_create_comp_channel)(context) });
        let channel = channel.ok_or_else(|| NicError::system("no completion channel"))?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are open.
        let cq =
            unsafe { (library.ibv_create_cq)(context, entries, null_mut(), channel.as_ptr(), 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = NicError::system("no completion queue");
            // SAFETY: no object uses the channel.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Completions(Arc::new(CompletionQueue {
            nic: nic.clone(),
            cq,
            channel,
        }));
        unblock(queue.fd())?;
        Ok(queue)
    }

    /// Returns the descriptor that becomes readable at the first completion after [`Completions::arm`].
    #[must_use]
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel is open.
        unsafe { self.0.channel.as_ref().fd }
    }

    /// Appends the completions that have arrived, at most [`POLL_MAX`], to `out`.
    ///
    /// # Errors
    /// [`NicError`]: the queue cannot be read.
    pub fn poll(&self, out: &mut Vec<Completion>) -> Result<(), NicError> {
        let mut polled = [ffi::Wc::default(); POLL_MAX];
        let most = c_int::try_from(POLL_MAX).expect("small");
        let context = self.0.nic.0.context.as_ptr();
        // SAFETY: the driver's function is called as the library's header calls it, and the array has as many places as
        // stated.
        let count =
            unsafe { ((*context).ops.poll_cq)(self.0.cq.as_ptr(), most, polled.as_mut_ptr()) };
        let count = usize::try_from(count)
            .map_err(|_| NicError("the completions cannot be read".to_owned()))?;
        out.extend(polled[..count].iter().map(|wc| Completion {
            id: wc.wr_id,
            qpn: wc.qp_num,
            outcome: match wc.status {
                ffi::WC_SUCCESS => Ok(wc.byte_len),
                status => Err(status),
            },
        }));
        Ok(())
    }

    /// Requests that the next completion makes [`Completions::fd`] readable. Poll once more after this call.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn arm(&self) -> Result<(), NicError> {
        let context = self.0.nic.0.context.as_ptr();
        // SAFETY: this call is the one that the library's header makes.
        match unsafe { ((*context).ops.req_notify_cq)(self.0.cq.as_ptr(), 0) } {
            0 => Ok(()),
            code => Err(NicError::code("the NIC cannot wake this process", code)),
        }
    }

    /// Returns whether the NIC has signalled a completion. If so, [`Completions::arm`] must be called again.
    #[must_use]
    pub fn take_event(&self) -> bool {
        let (mut cq, mut about) = (null_mut(), null_mut());
        let library = self.0.nic.0.library;
        // SAFETY: the channel is open and does not block. Its event belongs to its only queue, and is acknowledged
        // once.
        unsafe {
            let channel = self.0.channel.as_ptr();
            if (library.ibv_get_cq_event)(channel, &raw mut cq, &raw mut about) != 0 {
                return false;
            }
            (library.ibv_ack_cq_events)(cq, 1);
        }
        true
    }
}

struct SharedQueue {
    nic: Nic,
    srq: NonNull<ffi::Srq>,
    /// Memory into which the NIC stores messages.
    memory: SlotMemory,
}

// SAFETY: as for `Opened`.
unsafe impl Send for SharedQueue {}
// SAFETY: as for `Opened`.
unsafe impl Sync for SharedQueue {}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: QPs hold an `Arc` of this value.
        unsafe { (self.nic.0.library.ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}

/// A shared receive queue. The NIC takes slots in the order in which they are posted.
#[derive(Clone)]
pub struct Receiver(Arc<SharedQueue>);

impl Receiver {
    /// Creates a queue for this number of slots in this memory.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn new(nic: &Nic, memory: SlotMemory, slots: u32) -> Result<Receiver, NicError> {
        if slots > nic.0.slots_max {
            return Err(NicError(format!(
                "{} takes {} slots at most, and there are {slots}",
                nic.name(),
                nic.0.slots_max
            )));
        }
        let mut attributes = ffi::SrqInitAttr {
            srq_context: null_mut(),
            max_wr: slots,
            max_sge: 1,
            srq_limit: 0,
        };
        // SAFETY: the domain is open.
        let srq = unsafe { (nic.0.library.ibv_create_srq)(nic.0.pd.as_ptr(), &raw mut attributes) };
        let srq = NonNull::new(srq).ok_or_else(|| NicError::system("no shared receive queue"))?;
        Ok(Receiver(Arc::new(SharedQueue {
            nic: nic.clone(),
            srq,
            memory,
        })))
    }

    /// Posts a slot: the NIC may put message `number` at `place` of the memory.
    ///
    /// # Errors
    /// [`NicError`].
    ///
    /// # Panics
    /// If the place is outside the memory.
    pub fn post(&self, number: u64, place: &Range<usize>) -> Result<(), NicError> {
        let memory = &self.0.memory;
        assert!(
            place.start < place.end && place.end <= memory.memory.len(),
            "{place:?} is in the memory of the slots"
        );
        let start = memory.readable().at + u64::try_from(place.start).expect("64 bits");
        let mut part = ffi::Sge {
            addr: start,
            length: u32::try_from(place.len()).expect("a slot"),
            lkey: memory.registered.keys().0,
        };
        let mut work = ffi::RecvWr {
            wr_id: number,
            next: null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
        };
        let mut bad = null_mut();
        let context = self.0.nic.0.context.as_ptr();
        // SAFETY: this call is the one that the library's header makes. The place is in registered memory, which is not
        // read before the completion (`pmnet_log::slots`).
        let code = unsafe {
            ((*context).ops.post_srq_recv)(self.0.srq.as_ptr(), &raw mut work, &raw mut bad)
        };
        match code {
            0 => Ok(()),
            code => Err(NicError::code("the NIC takes no slot", code)),
        }
    }
}

/// A queue pair (RC). It is destroyed when it is dropped.
pub struct QueuePair {
    nic: Nic,
    qp: NonNull<ffi::Qp>,
    psn: u32,
    /// This is kept because the NIC uses the queue for this QP.
    _completions: Completions,
    _receiver: Option<Receiver>,
}

// SAFETY: as for `Opened`.
unsafe impl Send for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuePair").field(&self.number()).finish()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the QP was created once, and is destroyed once.
        unsafe { (self.nic.0.library.ibv_destroy_qp)(self.qp.as_ptr()) };
    }
}

impl QueuePair {
    /// Creates a QP that receives into a shared queue, or a QP that can have up to `sends` send requests under way.
    /// `psn` must be a random number.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn new(
        nic: &Nic,
        completions: &Completions,
        receiver: Option<&Receiver>,
        sends: u32,
        psn: u32,
    ) -> Result<QueuePair, NicError> {
        let cq = completions.0.cq.as_ptr();
        let mut attributes = ffi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: receiver.map_or(null_mut(), |receiver| receiver.0.srq.as_ptr()),
            cap: ffi::QpCap {
                max_send_wr: sends.max(1),
                max_recv_wr: u32::from(receiver.is_none()),
                max_send_sge: 1,
                max_recv_sge: u32::from(receiver.is_none()),
                max_inline_data: 0,
            },
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: all objects that the attributes name are open, and the returned value holds them.
        let qp = unsafe { (nic.0.library.ibv_create_qp)(nic.0.pd.as_ptr(), &raw mut attributes) };
        let qp = NonNull::new(qp).ok_or_else(|| NicError::system("no queue pair"))?;
        let pair = QueuePair {
            nic: nic.clone(),
            qp,
            psn: psn & 0xff_ffff,
            _completions: completions.clone(),
            _receiver: receiver.cloned(),
        };
        let init = ffi::QpAttr {
            qp_state: ffi::QPS_INIT,
            port_num: PORT,
            qp_access_flags: u32::try_from(ffi::ACCESS_REMOTE_READ).expect("a bit"),
            ..ffi::QpAttr::default()
        };
        let bits = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS;
        pair.modify(init, bits, "a queue pair cannot begin")?;
        Ok(pair)
    }

    /// Returns the number of the QP.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the QP is open.
        unsafe { self.qp.as_ref().qp_num }
    }

    /// Returns the QP's address in memory, by which [`NicEvent`] names it.
    #[must_use]
    pub fn place(&self) -> usize {
        self.qp.as_ptr().addr()
    }

    /// Returns the QP's address for its partner.
    #[must_use]
    pub fn whereto(&self) -> Whereto {
        Whereto {
            qpn: self.number(),
            psn: self.psn,
            gid: self.nic.gid(),
        }
    }

    /// Connects to a partner. After that, the QP may receive and send. `mtu` is the smaller of the two partners'
    /// values.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn connect(&self, partner: &Whereto, mtu: u32) -> Result<(), NicError> {
        let opened = &self.nic.0;
        let half = |part: &[u8]| u64::from_ne_bytes(part.try_into().expect("8 bytes"));
        let route = ffi::AhAttr {
            dgid: [half(&partner.gid[..8]), half(&partner.gid[8..])],
            sgid_index: opened.gid_index,
            hop_limit: HOPS,
            is_global: 1,
            port_num: PORT,
            ..ffi::AhAttr::default()
        };
        let receive = ffi::QpAttr {
            qp_state: ffi::QPS_RTR,
            path_mtu: mtu.clamp(256, 4096).ilog2() - 7,
            dest_qp_num: partner.qpn,
            rq_psn: partner.psn & 0xff_ffff,
            max_dest_rd_atomic: opened.reads_max,
            min_rnr_timer: RNR_TIMER,
            ah_attr: route,
            ..ffi::QpAttr::default()
        };
        let bits = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        let bits = bits | mask::DEST_RD_ATOMIC | mask::MIN_RNR;
        self.modify(receive, bits, "a queue pair cannot receive")?;
        let send = ffi::QpAttr {
            qp_state: ffi::QPS_RTS,
            sq_psn: self.psn,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: opened.reads_max,
            ..ffi::QpAttr::default()
        };
        let bits = mask::STATE | mask::SQ_PSN | mask::TIMEOUT | mask::RETRY | mask::RNR_RETRY;
        self.modify(send, bits | mask::RD_ATOMIC, "a queue pair cannot send")
    }

    /// Breaks the QP. After that, the NIC acknowledges nothing more on it.
    ///
    /// # Errors
    /// [`NicError`]: the NIC may still acknowledge messages.
    pub fn break_off(&self) -> Result<(), NicError> {
        let broken = ffi::QpAttr {
            qp_state: ffi::QPS_ERR,
            ..ffi::QpAttr::default()
        };
        self.modify(broken, mask::STATE, "a queue pair cannot be broken")
    }

    fn modify(&self, mut attr: ffi::QpAttr, bits: c_int, what: &str) -> Result<(), NicError> {
        let library = self.nic.0.library;
        // SAFETY: the queue pair is open; `bits` says which attributes are set.
        match unsafe { (library.ibv_modify_qp)(self.qp.as_ptr(), &raw mut attr, bits) } {
            0 => Ok(()),
            code => Err(NicError::code(what, code)),
        }
    }
}

/// Buffers of one size from which a QP sends, and the place into which it reads a byte.
pub struct SendBuffers {
    registered: Registered,
    buffers: Buffers,
    each: usize,
    count: usize,
}

impl SendBuffers {
    /// Creates `count` buffers of `each` bytes.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn new(nic: &Nic, count: usize, each: usize) -> Result<SendBuffers, NicError> {
        let buffers = Buffers::new(count * each + 64);
        let registered = nic.register(buffers.start.as_ptr(), buffers.layout.size(), 0)?;
        Ok(SendBuffers {
            registered,
            buffers,
            each,
            count,
        })
    }

    /// Returns the size of each buffer, in bytes.
    #[must_use]
    pub const fn each(&self) -> usize {
        self.each
    }

    fn part(&self, at: usize, length: usize) -> ffi::Sge {
        let start = self.buffers.start.as_ptr().addr() + at;
        ffi::Sge {
            addr: u64::try_from(start).expect("64 bits"),
            length: u32::try_from(length).expect("a message"),
            lkey: self.registered.keys().0,
        }
    }

    /// Sends a message from buffer `number`. The NIC must not use the buffer any more for an earlier message.
    ///
    /// # Errors
    /// [`NicError`].
    ///
    /// # Panics
    /// If there is no such buffer, or the message is longer than the buffer.
    pub fn send(&mut self, pair: &QueuePair, number: usize, bytes: &[u8]) -> Result<(), NicError> {
        assert!(
            number < self.count && bytes.len() <= self.each,
            "the message fits a buffer"
        );
        let at = number * self.each;
        // SAFETY: the buffer lies in the memory, and `self` is borrowed mutably.
        unsafe {
            let to = self.buffers.start.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.post(pair, self.part(at, bytes.len()), None, 0)
    }

    /// Begins a message of `length` bytes that never ends, because the NIC can read only its `first` bytes. The NIC
    /// sends the packets that these bytes fill, and then reports an error. This is for tests of a partner's reaction to
    /// such a client.
    ///
    /// # Errors
    /// [`NicError`].
    ///
    /// # Panics
    /// If `first` is larger than a buffer, or not less than `length`.
    pub fn begin(&mut self, pair: &QueuePair, first: usize, length: usize) -> Result<(), NicError> {
        assert!(first <= self.each && first < length, "a part of a message");
        // The rest of the message lies outside the registered memory.
        let at = self.buffers.layout.size() - first;
        self.post(pair, self.part(at, length), None, 0)
    }

    /// Reads one byte of the partner's memory. The read completes with `id`, after all earlier sends.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn read_byte(&mut self, pair: &QueuePair, from: Readable, id: u64) -> Result<(), NicError> {
        self.post(pair, self.part(self.count * self.each, 1), Some(from), id)
    }

    fn post(
        &self,
        pair: &QueuePair,
        mut part: ffi::Sge,
        from: Option<Readable>,
        id: u64,
    ) -> Result<(), NicError> {
        let mut work = ffi::SendWr {
            wr_id: id,
            next: null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
            opcode: from.map_or(ffi::WR_SEND, |_| ffi::WR_RDMA_READ),
            send_flags: from.map_or(0, |_| ffi::SEND_SIGNALED),
            imm: 0,
            remote_addr: from.map_or(0, |from| from.at),
            rkey: from.map_or(0, |from| from.key),
            _rest: [0; 9],
        };
        let mut bad = null_mut();
        let context = pair.nic.0.context.as_ptr();
        // SAFETY: this is the call that the inline function in libibverbs' header makes. The memory is registered, and
        // stays so: the owner of the queue pair owns the memory too, and drops it later.
        let code =
            unsafe { ((*context).ops.post_send)(pair.qp.as_ptr(), &raw mut work, &raw mut bad) };
        match code {
            0 => Ok(()),
            code => Err(NicError::code("the NIC does not send", code)),
        }
    }
}
