//! The part of libibverbs that pmnet uses, as declared in `infiniband/verbs.h`. The library is loaded only when it is
//! needed, so without RDMA pmnet also runs on a computer that does not have the library.
//!
//! Sizes and offsets are those of the library's stable interface (IBVERBS_1.0, 1.1) on 64-bit computers; the constants
//! below check them. A binding crate exists (`rdma-mummy-sys`), but for these 25 functions it would need cmake and
//! libclang on each computer that builds pmnet.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::sync::OnceLock;

macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque!(Device, Pd, Srq, Cq);

/// The driver's functions that the header calls directly, without the library.
#[repr(C)]
pub struct ContextOps {
    _before_poll: [usize; 11],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    _before_srq: [usize; 7],
    pub post_srq_recv: unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    _before_send: [usize; 4],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    _rest: [usize; 6],
}

#[repr(C)]
pub struct Context {
    _device: *mut Device,
    pub ops: ContextOps,
    _cmd_fd: c_int,
    pub async_fd: c_int,
}

/// The first fields of `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    _context: *mut Context,
    _pd: *mut Pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// The first fields of `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    _pointers: [usize; 6],
    _handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
pub struct CompChannel {
    _context: *mut Context,
    pub fd: c_int,
    _refcnt: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    _imm: u32,
    pub qp_num: u32,
    _src_qp: u32,
    _flags: c_uint,
    _pkey_index: u16,
    _slid: u16,
    _sl: u8,
    _dlid_path_bits: u8,
}

#[repr(C)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub _rest: [u64; 9],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    // Space for the fields that later versions of the interface added, so that no version writes past the end of the
    // struct.
    _rest: [u32; 9],
}

#[repr(C, align(8))]
pub struct DeviceAttr {
    _before: [u32; 28],
    pub max_qp_wr: c_int,
    _flags: [u32; 4],
    pub max_cqe: c_int,
    _more: [u32; 2],
    pub max_qp_rd_atom: c_int,
    _and: [u32; 16],
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    _end: [u32; 3],
}

#[repr(C)]
pub struct AsyncEvent {
    pub element: *mut c_void,
    pub event_type: c_uint,
}

const _: () = {
    assert!(size_of::<usize>() == 8, "the layouts are those of 64 bits");
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, poll_cq) == 88);
    assert!(offset_of!(ContextOps, req_notify_cq) == 96);
    assert!(offset_of!(ContextOps, post_srq_recv) == 160);
    assert!(offset_of!(ContextOps, post_send) == 200);
    assert!(offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(offset_of!(CompChannel, fd) == 8);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, qp_num) == 28);
    assert!(size_of::<Sge>() == 16 && size_of::<RecvWr>() == 32);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, remote_addr) == 40);
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<SrqInitAttr>() == 32 - 8);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, dlid) == 24);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, max_rd_atomic) == 126);
    assert!(size_of::<PortAttr>() == 52);
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_qp_wr) == 112);
    assert!(offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(DeviceAttr, max_srq) == 212 && offset_of!(DeviceAttr, max_srq_wr) == 216);
    assert!(size_of::<AsyncEvent>() == 16);
};

pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub const QPT_RC: c_uint = 2;
pub const QPS_INIT: c_uint = 1;
pub const QPS_RTR: c_uint = 2;
pub const QPS_RTS: c_uint = 3;
pub const QPS_ERR: c_uint = 6;
pub const PORT_ACTIVE: c_uint = 4;
pub const WR_SEND: c_uint = 2;
pub const WR_RDMA_READ: c_uint = 4;
pub const SEND_SIGNALED: c_uint = 1 << 1;
pub const WC_SUCCESS: c_uint = 0;
pub const EVENT_LAST_WQE_REACHED: c_uint = 16;
pub const EVENT_CQ_ERR: c_uint = 0;
pub const EVENT_DEVICE_FATAL: c_uint = 8;
pub const EVENT_SRQ_ERR: c_uint = 14;
/// Bits of the mask of `ibv_modify_qp`.
pub mod mask {
    use std::ffi::c_int;
    pub const STATE: c_int = 1;
    pub const ACCESS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const RD_ATOMIC: c_int = 1 << 13;
    pub const MIN_RNR: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const DEST_QPN: c_int = 1 << 20;
}

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions of the loaded library.
        #[allow(non_snake_case)]
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Library {
            fn load() -> Result<Library, String> {
                // SAFETY: the name is a C string. Every program with RDMA loads the library in this way.
                let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    return Err("there is no libibverbs.so.1: install the packages libibverbs1 and ibverbs-providers".into());
                }
                Ok(Library {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the handle was just opened, and the name ends with 0.
                        let found = unsafe { libc::dlsym(handle, name.as_ptr().cast::<c_char>()) };
                        if found.is_null() {
                            return Err(format!("libibverbs.so.1 has no {}: it is too old", stringify!($name)));
                        }
                        // SAFETY: the library's header declares the function with this type, and the library is never
                        // unloaded.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device);
    ibv_get_device_name: fn(*mut Device) -> *const c_char;
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut [u64; 2]) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, c_uint);
    ibv_create_srq: fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    ibv_destroy_srq: fn(*mut Srq) -> c_int;
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut AsyncEvent);
}

/// Returns the library, which is loaded at the first call.
///
/// # Errors
/// A sentence that states why the library cannot be loaded.
pub fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY
        .get_or_init(Library::load)
        .as_ref()
        .map_err(Clone::clone)
}

/// Returns a device's name.
///
/// # Safety
/// The device must belong to a list that is not freed yet.
pub unsafe fn name_of(library: &Library, device: *mut Device) -> String {
    // SAFETY: the caller's device is valid, and its name is a C string in it.
    unsafe {
        let name = (library.ibv_get_device_name)(device);
        if name.is_null() {
            return String::new();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}
