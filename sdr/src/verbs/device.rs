//! Objects of a device, each of which ends with its owner. The `unsafe` of this back end stands
//! here.
//!
//! An object keeps what it was made from alive. So nothing is used after its end.
#![expect(unsafe_code, reason = "libibverbs is a C library")]

use std::ffi::{CStr, c_int};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::*;

use super::details::Details;
use crate::memory::{Buffer, Region, Registry};

/// The port that is used: devices with more have a name for each.
pub(super) const PORT: u8 = 1;
/// GIDs that are looked at.
const MOST_GIDS: u32 = 256;
const HOPS: u8 = 64;

/// Returns the last error of the C library.
pub(super) fn last() -> io::Error {
    io::Error::last_os_error()
}

/// Returns the error of a call that returns an error number, with whatever sign.
pub(super) fn check(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.abs())) }
}

/// An open device, and its protection domain.
pub(super) struct Device {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    pub(super) gid: [u8; 16],
    gid_index: u8,
    pub(super) mtu_log: u8,
}

// SAFETY: libibverbs is safe to use from several threads.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device `name`, and picks its GID: RoCE v2 on IPv4 if it has one.
    pub(super) fn open(name: &str) -> io::Result<Arc<Self>> {
        // SAFETY: `open_by` calls it with a device of a list.
        Device::open_by(name, |device| unsafe { ibv_open_device(device) })
    }

    /// Opens the device `name` by `open`, which gets it out of a list that is not freed yet.
    /// It returns null, and leaves an error number, if it fails.
    pub(super) fn open_by(
        name: &str,
        open: impl Fn(*mut ibv_device) -> *mut ibv_context,
    ) -> io::Result<Arc<Self>> {
        let mut count = 0;
        // SAFETY: the count is valid.
        let list = unsafe { ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(last());
        }
        let mut found = Err(io::Error::new(io::ErrorKind::NotFound, "no such RDMA device"));
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` devices, and a device's name is a C string.
            let (device, known) = unsafe {
                let device = *list.add(at);
                (device, CStr::from_ptr(ibv_get_device_name(device)))
            };
            if known.to_bytes() == name.as_bytes() {
                // The device is of the list, which is freed below.
                let context = open(device);
                found = if context.is_null() { Err(last()) } else { Ok(context) };
            }
        }
        // SAFETY: the list is freed once, and its devices are not used afterwards.
        unsafe { ibv_free_device_list(list) };
        let context = found?;
        // From here on it is closed when it is dropped.
        let mut device = Device { context, pd: ptr::null_mut(), gid: [0; 16], gid_index: 0, mtu_log: 0 };
        // SAFETY: the context is open.
        device.pd = unsafe { ibv_alloc_pd(context) };
        if device.pd.is_null() {
            return Err(last());
        }
        // SAFETY: all zeros is a valid value, and the call fills it.
        let mut port: ibv_port_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open, and the attributes are valid.
        check(unsafe { ibv_query_port(context, PORT, &raw mut port) })?;
        device.mtu_log = u8::try_from(port.active_mtu + 7).unwrap_or(0);
        (device.gid_index, device.gid) = device.pick_gid(name, port.gid_tbl_len as u32)?;
        Ok(Arc::new(device))
    }

    #[cfg(feature = "mlx5")]
    pub(super) fn context(&self) -> *mut ibv_context {
        self.context
    }

    #[cfg(feature = "mlx5")]
    pub(super) fn pd(&self) -> *mut ibv_pd {
        self.pd
    }

    fn pick_gid(&self, name: &str, count: u32) -> io::Result<(u8, [u8; 16])> {
        let mut first = None;
        for index in 0..count.min(MOST_GIDS) {
            let mut gid = ibv_gid { raw: [0; 16] };
            // SAFETY: the context is open, and the GID is valid.
            let code = unsafe { ibv_query_gid(self.context, PORT, index as c_int, &raw mut gid) };
            // SAFETY: any 16 bytes are a GID.
            let raw = unsafe { gid.raw };
            let kind = format!("/sys/class/infiniband/{name}/ports/{PORT}/gid_attrs/types/{index}");
            let is_v2 = std::fs::read_to_string(kind).is_ok_and(|kind| kind.trim() == "RoCE v2");
            if code != 0 || raw == [0; 16] || !is_v2 {
                continue;
            }
            let (index, is_v4) = (index as u8, raw.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]));
            if is_v4 {
                return Ok((index, raw));
            }
            first.get_or_insert((index, raw));
        }
        first.ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "the device has no RoCE v2 GID"))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever was made from them kept the device, and is gone.
        unsafe {
            if !self.pd.is_null() {
                ibv_dealloc_pd(self.pd);
            }
            ibv_close_device(self.context);
        }
    }
}

/// Memory that is known to a device.
struct Registered {
    mr: *mut ibv_mr,
    _device: Arc<Device>,
}

// SAFETY: libibverbs is safe to use from several threads.
unsafe impl Send for Registered {}
// SAFETY: as above; nobody changes it.
unsafe impl Sync for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: no window is bound to it, and no work request names it: both held the memory.
        unsafe { ibv_dereg_mr(self.mr) };
    }
}

/// Registers regions with a device, when they are used first.
pub(super) struct Registrar(pub(super) Arc<Device>);

impl Registry for Registrar {
    fn register(&self, region: &Region) -> io::Result<usize> {
        region.hold(Arc::as_ptr(&self.0).addr(), || {
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                | ibv_access_flags::IBV_ACCESS_MW_BIND;
            // SAFETY: the region's memory is valid until what is made here is dropped.
            let mr = unsafe {
                ibv_reg_mr(self.0.pd, region.start().as_ptr().cast(), region.len(), access.0 as c_int)
            };
            if mr.is_null() {
                return Err(last());
            }
            Ok((Arc::new(Registered { mr, _device: Arc::clone(&self.0) }), mr.expose_provenance()))
        })
    }
}

/// Memory by its registration, as [`Registrar`] tells it.
#[derive(Clone, Copy)]
pub(super) struct Mr(*mut ibv_mr);

// SAFETY: its key is only read.
unsafe impl Send for Mr {}

impl Mr {
    /// Returns the memory that `known` stands for.
    ///
    /// # Safety
    /// A [`Registrar`] returned it, and the region is alive as long as the result is used.
    pub(super) unsafe fn of(known: usize) -> Self {
        Mr(ptr::with_exposed_provenance_mut(known))
    }

    pub(super) fn lkey(self) -> u32 {
        // SAFETY: it is alive, as `of` was promised.
        unsafe { (*self.0).lkey }
    }
}

/// A completion queue, and the channel that wakes for it.
pub(super) struct Queue {
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    _device: Arc<Device>,
}

// SAFETY: libibverbs is safe to use from several threads.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// A completed work request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    pub(super) id: u64,
    pub(super) is_success: bool,
    pub(super) bytes: u32,
    pub(super) imm: u32,
}

impl Queue {
    /// Makes a queue for `entries` completions.
    pub(super) fn new(device: &Arc<Device>, entries: u32) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let channel = unsafe { ibv_create_comp_channel(device.context) };
        if channel.is_null() {
            return Err(last());
        }
        let mut queue = Queue { cq: ptr::null_mut(), channel, _device: Arc::clone(device) };
        rustix::io::ioctl_fionbio(&queue, true)?;
        // SAFETY: device and channel are open.
        queue.cq = unsafe { ibv_create_cq(device.context, entries as c_int, ptr::null_mut(), channel, 0) };
        if queue.cq.is_null() { Err(last()) } else { Ok(Arc::new(queue)) }
    }

    #[cfg(feature = "mlx5")]
    pub(super) fn cq(&self) -> *mut ibv_cq {
        self.cq
    }

    /// Takes completions out, at most as many as `out` holds. Returns how many.
    pub(super) fn poll(&self, out: &mut [Completion; 64]) -> io::Result<usize> {
        // SAFETY: all zeros is a valid value.
        let mut found: [ibv_wc; 64] = unsafe { mem::zeroed() };
        // SAFETY: the queue is open, and there is room for as many.
        let count = unsafe { ibv_poll_cq(self.cq, found.len() as c_int, found.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| last())?;
        for (place, wc) in out.iter_mut().zip(found.iter().take(count)) {
            *place = Completion {
                id: wc.wr_id,
                is_success: wc.status == ibv_wc_status::IBV_WC_SUCCESS,
                bytes: wc.byte_len,
                // SAFETY: any 32 bits are a number.
                imm: u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data }),
            };
        }
        Ok(count)
    }

    /// Has the channel become readable with the next completion.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is open.
        check(unsafe { ibv_req_notify_cq(self.cq, 0) })
    }

    /// Takes events out of the channel.
    pub(super) fn acknowledge(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open and does not block, and both places are valid.
        while unsafe { ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) } == 0 {
            // SAFETY: the event is of this queue, the channel's only one.
            unsafe { ibv_ack_cq_events(cq, 1) };
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as the queue lives.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: queue pairs held the queue, and are gone; all events are acknowledged.
        unsafe {
            if !self.cq.is_null() {
                ibv_destroy_cq(self.cq);
            }
            ibv_destroy_comp_channel(self.channel);
        }
    }
}

/// Names the path to `gid` at an MTU. The own queue pair's number spreads channels over paths.
pub(super) fn set_path(attr: &mut ibv_qp_attr, device: &Device, (gid, mtu_log, own): ([u8; 16], u8, u32)) {
    attr.path_mtu = ibv_mtu::Type::from(mtu_log) - 7;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = PORT;
    attr.ah_attr.grh.dgid = ibv_gid { raw: gid };
    attr.ah_attr.grh.sgid_index = device.gid_index;
    attr.ah_attr.grh.hop_limit = HOPS;
    attr.ah_attr.grh.flow_label = own & 0xf_ffff;
}

/// A write of a packet into the peer's memory.
#[derive(Clone, Copy)]
pub(super) struct WriteRequest {
    pub(super) id: u64,
    pub(super) local: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
    pub(super) remote: u64,
    pub(super) rkey: u32,
    pub(super) imm: u32,
}

/// A queue pair of an unreliable connection.
pub(super) struct Pair {
    qp: *mut ibv_qp,
    device: Arc<Device>,
    _queue: Arc<Queue>,
    /// Room for a list of work requests.
    sends: Vec<(ibv_send_wr, ibv_sge)>,
    receives: Vec<ibv_recv_wr>,
}

// SAFETY: libibverbs is safe to use from several threads, and lists are filled anew at each use.
unsafe impl Send for Pair {}

impl Pair {
    /// Makes a queue pair for so many sends and receives, and as many at once as `batch`.
    pub(super) fn new(
        device: &Arc<Device>,
        queue: &Arc<Queue>,
        (sends, receives, batch): (u32, u32, usize),
    ) -> io::Result<Self> {
        // SAFETY: all zeros is a valid value.
        let mut init: ibv_qp_init_attr = unsafe { mem::zeroed() };
        init.send_cq = queue.cq;
        init.recv_cq = queue.cq;
        init.cap = ibv_qp_cap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        init.qp_type = ibv_qp_type::IBV_QPT_UC;
        init.sq_sig_all = 1;
        // SAFETY: the domain is open, and the attributes are valid.
        let qp = unsafe { ibv_create_qp(device.pd, &raw mut init) };
        if qp.is_null() {
            return Err(last());
        }
        // SAFETY: all zeros is a valid value.
        let sends = (0..batch).map(|_| unsafe { mem::zeroed() }).collect();
        // SAFETY: all zeros is a valid value.
        let receives = (0..batch).map(|_| unsafe { mem::zeroed() }).collect();
        let mut pair = Pair { qp, device: Arc::clone(device), _queue: Arc::clone(queue), sends, receives };
        // SAFETY: all zeros is a valid value.
        let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = PORT;
        attr.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        pair.modify(&mut attr, mask)?;
        Ok(pair)
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.qp).qp_num }
    }

    fn modify(&mut self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair is alive, and the attributes are valid.
        check(unsafe { ibv_modify_qp(self.qp, attr, mask.0 as c_int) })
    }

    /// Connects to the peer's queue pair `number`.
    pub(super) fn connect(&mut self, peer: &Details, number: u32, psn: u32, mtu_log: u8) -> io::Result<()> {
        // SAFETY: all zeros is a valid value.
        let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.dest_qp_num = number;
        attr.rq_psn = peer.psn;
        set_path(&mut attr, &self.device, (peer.gid, mtu_log, self.number()));
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN;
        self.modify(&mut attr, mask)?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.sq_psn = psn;
        self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN)
    }

    /// Posts `count` receives without memory, `batch` at most.
    pub(super) fn post_receives(&mut self, id: u64, count: usize) -> io::Result<()> {
        let count = count.min(self.receives.len());
        for wr in self.receives.iter_mut().take(count) {
            *wr = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        }
        let list = self.receives.as_mut_ptr();
        for at in 1..count {
            // SAFETY: both are of the list.
            unsafe { (*list.add(at - 1)).next = list.add(at) };
        }
        if count == 0 { Ok(()) } else { self.post_receive_list(list) }
    }

    /// Posts a receive into `len` bytes at `address`.
    pub(super) fn post_receive(&mut self, id: u64, address: u64, len: u32, lkey: u32) -> io::Result<()> {
        let mut sge = ibv_sge { addr: address, length: len, lkey };
        let mut wr = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        self.post_receive_list(&raw mut wr)
    }

    fn post_receive_list(&mut self, list: *mut ibv_recv_wr) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, and the list and what it names outlive the call.
        check(unsafe { ibv_post_recv(self.qp, list, &raw mut bad) })
    }

    /// Posts writes, as many as fit into a batch.
    pub(super) fn post_writes(&mut self, writes: &[WriteRequest]) -> io::Result<()> {
        let count = writes.len().min(self.sends.len());
        let list = self.sends.as_mut_ptr();
        for (at, write) in writes.iter().enumerate().take(count) {
            // SAFETY: the place is of the list. All zeros is a valid value, and only fields of
            // this kind of request are set in unions.
            unsafe {
                let (wr, sge) = &mut *list.add(at);
                *sge = ibv_sge { addr: write.local, length: write.len, lkey: write.lkey };
                *wr = mem::zeroed();
                wr.wr_id = write.id;
                wr.sg_list = &raw mut *sge;
                wr.num_sge = 1;
                wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                wr.imm_data_invalidated_rkey_union.imm_data = write.imm.to_be();
                wr.wr.rdma = rdma_t { remote_addr: write.remote, rkey: write.rkey };
                if at + 1 < count {
                    wr.next = &raw mut (*list.add(at + 1)).0;
                }
            }
        }
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the list has a first request.
        self.post_send_list(unsafe { &raw mut (*list).0 })
    }

    /// Posts a send of `len` bytes at `address`.
    pub(super) fn post_send(&mut self, id: u64, address: u64, len: u32, lkey: u32) -> io::Result<()> {
        let mut sge = ibv_sge { addr: address, length: len, lkey };
        // SAFETY: all zeros is a valid value.
        let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
        wr.wr_id = id;
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
        self.post_send_list(&raw mut wr)
    }

    fn post_send_list(&mut self, list: *mut ibv_send_wr) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, and the list and what it names outlive the call.
        check(unsafe { ibv_post_send(self.qp, list, &raw mut bad) })
    }

    /// Binds `window` to `len` bytes at `address` of `mr`, or to nothing if `len` is 0. Returns the
    /// new key, which is valid once the request has completed.
    ///
    /// Any memory does for nothing. Soft-RoCE's library follows the pointer all the same.
    pub(super) fn bind(
        &mut self,
        id: u64,
        window: &mut Window,
        (mr, addr, length): (Mr, u64, u64),
    ) -> io::Result<u32> {
        let mw_access_flags = if length > 0 { ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 } else { 0 };
        let mut bind = ibv_mw_bind {
            wr_id: id,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            bind_info: ibv_mw_bind_info { mr: mr.0, addr, length, mw_access_flags },
        };
        // SAFETY: queue pair and window are alive, and so is the memory, whose holder waits for us.
        check(unsafe { ibv_bind_mw(self.qp, window.mw, &raw mut bind) })?;
        // SAFETY: the window is alive.
        Ok(unsafe { (*window.mw).rkey })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { ibv_destroy_qp(self.qp) };
    }
}

/// A memory window of type 1.
pub(super) struct Window {
    mw: *mut ibv_mw,
    _device: Arc<Device>,
}

// SAFETY: libibverbs is safe to use from several threads.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn new(device: &Arc<Device>) -> io::Result<Self> {
        // SAFETY: the domain is open.
        let mw = unsafe { ibv_alloc_mw(device.pd, ibv_mw_type::IBV_MW_TYPE_1) };
        if mw.is_null() { Err(last()) } else { Ok(Window { mw, _device: Arc::clone(device) }) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { ibv_dealloc_mw(self.mw) };
    }
}

/// Memory of this back end's own, cut into places that a device writes to or reads from.
pub(super) struct Places {
    buffer: Buffer,
    mr: Mr,
    size: usize,
}

impl Places {
    pub(super) fn new(registrar: &Registrar, count: usize, size: usize) -> io::Result<Self> {
        let buffer = Buffer::zeroed(count * size);
        let known = registrar.register(buffer.region())?;
        // SAFETY: it comes from the registrar, and the buffer lives beside it.
        Ok(Places { mr: unsafe { Mr::of(known) }, buffer, size })
    }

    pub(super) fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    pub(super) fn mr(&self) -> Mr {
        self.mr
    }

    pub(super) fn address(&self, place: usize) -> u64 {
        self.buffer.start().addr() as u64 + (place * self.size) as u64
    }

    /// Returns the first `len` bytes of a place.
    ///
    /// # Safety
    /// The device does not write to it: its receive has completed and was not posted again.
    pub(super) unsafe fn read(&self, place: usize, len: usize) -> Option<&[u8]> {
        let start = place.checked_mul(self.size)?;
        if len > self.size || start + len > self.buffer.len() {
            return None;
        }
        // SAFETY: in bounds, and nobody writes to it.
        Some(unsafe { std::slice::from_raw_parts(self.buffer.start().add(start), len) })
    }

    /// Copies `bytes` into a place. False if they do not fit.
    ///
    /// # Safety
    /// The device does not read it: its send has completed.
    pub(super) unsafe fn write(&mut self, place: usize, bytes: &[u8]) -> bool {
        let start = place * self.size;
        if bytes.len() > self.size || start + bytes.len() > self.buffer.len() {
            return false;
        }
        // SAFETY: in bounds, and nobody else accesses it.
        unsafe { self.buffer.start().add(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    }
}
