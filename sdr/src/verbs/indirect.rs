//! Indirect memory keys of mlx5 devices: late packets fall into a NULL key.
//!
//! A slot has an indirect key for each generation, and each generation has queue pairs of its own.
//! A key's layout is the buffer of its receive, and the NULL key up to the largest message.
//! Completing a receive makes all of the layout the NULL key, in one step.
//! So the device discards payload that comes late, and its completion names a generation that is
//! over. Without the NULL key it would put the queue pair into the error state.
//!
//! Keys are told as those of windows are, with addresses from 0 on.
//!
//! **Untried**: we had no such device. The calls are those of mlx5dv_create_mkey(3) and
//! mlx5dv_wr_mkey_configure(3), which say that a layout may be set anew while the key is in use.
#![expect(unsafe_code, reason = "libibverbs and libmlx5 are C libraries")]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::sync::Arc;

use rdma_mummy_sys::*;

use super::device::{Device, Mr, PORT, Queue, check, last, set_path};
use super::windows::Key;

/// Layout entries of a key: the buffer, and the NULL key behind it.
const ENTRIES: usize = 2;
/// Bytes of a layout in a work request: 16 an entry, in whole blocks of 64.
const INLINE_BYTES: u32 = 64;

type OpenDevice = unsafe extern "C" fn(*mut ibv_device, *mut mlx5dv_context_attr) -> *mut ibv_context;
type CreateMkey = unsafe extern "C" fn(*mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey;
type DestroyMkey = unsafe extern "C" fn(*mut mlx5dv_mkey) -> c_int;

/// The calls of libmlx5 that the bindings leave out.
pub(super) struct Library {
    open_device: OpenDevice,
    create_mkey: CreateMkey,
    destroy_mkey: DestroyMkey,
    /// Ends after its calls.
    _loaded: libloading::Library,
}

impl Library {
    /// Finds libmlx5, as programs find it.
    pub(super) fn load() -> io::Result<Arc<Self>> {
        let missing = |error: libloading::Error| io::Error::new(io::ErrorKind::NotFound, error);
        // SAFETY: the library's initialisation is that of rdma-core, and asks nothing of us. The
        // calls have the types of its header.
        unsafe {
            let loaded = libloading::Library::new("libmlx5.so.1").map_err(missing)?;
            Ok(Arc::new(Library {
                open_device: *loaded.get::<OpenDevice>(b"mlx5dv_open_device\0").map_err(missing)?,
                create_mkey: *loaded.get::<CreateMkey>(b"mlx5dv_create_mkey\0").map_err(missing)?,
                destroy_mkey: *loaded.get::<DestroyMkey>(b"mlx5dv_destroy_mkey\0").map_err(missing)?,
                _loaded: loaded,
            }))
        }
    }

    /// Opens the device `name` so that indirect keys can be made on it.
    pub(super) fn open_device(&self, name: &str) -> io::Result<Arc<Device>> {
        Device::open_by(name, |device| {
            // SAFETY: all zeros is a valid value.
            let mut attr: mlx5dv_context_attr = unsafe { mem::zeroed() };
            attr.flags = mlx5dv_context_attr_flags::MLX5DV_CONTEXT_FLAGS_DEVX.0;
            // SAFETY: `open_by` calls it with a device of a list; the attributes are valid.
            unsafe { (self.open_device)(device, &raw mut attr) }
        })
    }
}

/// An indirect key.
struct Mkey {
    mkey: *mut mlx5dv_mkey,
    library: Arc<Library>,
    _device: Arc<Device>,
}

impl Mkey {
    fn new(library: &Arc<Library>, device: &Arc<Device>) -> io::Result<Self> {
        let mut attr = mlx5dv_mkey_init_attr {
            pd: device.pd(),
            create_flags: mlx5dv_mkey_init_attr_flags::MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT.0,
            max_entries: ENTRIES as u16,
        };
        // SAFETY: the domain is open, and the attributes are valid.
        let mkey = unsafe { (library.create_mkey)(&raw mut attr) };
        if mkey.is_null() {
            return Err(last());
        }
        Ok(Mkey { mkey, library: Arc::clone(library), _device: Arc::clone(device) })
    }
}

impl Drop for Mkey {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { (self.library.destroy_mkey)(self.mkey) };
    }
}

/// A queue pair of this side with itself, which sets layouts: only reliable ones do that.
struct Setter {
    qp: *mut ibv_qp,
    _queue: Arc<Queue>,
    _device: Arc<Device>,
}

impl Setter {
    fn new(device: &Arc<Device>, queue: &Arc<Queue>, requests: u32) -> io::Result<Self> {
        // SAFETY: all zeros is a valid value.
        let mut init: ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        (init.send_cq, init.recv_cq) = (queue.cq(), queue.cq());
        init.cap.max_send_wr = requests;
        init.cap.max_send_sge = 1;
        init.cap.max_inline_data = INLINE_BYTES;
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        init.sq_sig_all = 1;
        init.pd = device.pd();
        init.comp_mask = (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
            | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
            .0;
        init.send_ops_flags = u64::from(ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE.0);
        // SAFETY: all zeros is a valid value.
        let mut own: mlx5dv_qp_init_attr = unsafe { mem::zeroed() };
        own.comp_mask = u64::from(
            (mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS
                | mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS)
                .0,
        );
        own.create_flags = mlx5dv_qp_create_flags::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE.0;
        own.send_ops_flags = u64::from(mlx5dv_qp_create_send_ops_flags::MLX5DV_QP_EX_WITH_MKEY_CONFIGURE.0);
        // SAFETY: the device is open, and the attributes are valid.
        let qp = unsafe { mlx5dv_create_qp(device.context(), &raw mut init, &raw mut own) };
        if qp.is_null() {
            return Err(last());
        }
        let setter = Setter { qp, _queue: Arc::clone(queue), _device: Arc::clone(device) };
        setter.connect(device)?;
        Ok(setter)
    }

    /// Connects the queue pair with itself.
    fn connect(&self, device: &Device) -> io::Result<()> {
        use ibv_qp_attr_mask as mask;
        // SAFETY: the queue pair is alive.
        let number = unsafe { (*self.qp).qp_num };
        // SAFETY: all zeros is a valid value.
        let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = PORT;
        let init =
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, init)?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.dest_qp_num = number;
        attr.min_rnr_timer = 12;
        set_path(&mut attr, device, (device.gid, device.mtu_log, number));
        let ready = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, ready)?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 7);
        let sends = mask::IBV_QP_STATE
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, sends)
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair is alive, and the attributes are valid.
        check(unsafe { ibv_modify_qp(self.qp, attr, mask.0 as c_int) })
    }

    /// Posts a request that gives `mkey` another layout.
    fn set(&mut self, id: u64, mkey: &Mkey, layout: &[ibv_sge]) -> io::Result<()> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let mut attr = mlx5dv_mkey_conf_attr { conf_flags: 0, comp_mask: 0 };
        // SAFETY: the queue pair was made with these calls, and key and layout outlive them: a
        // layout is copied into the request.
        check(unsafe {
            let extended = ibv_qp_to_qp_ex(self.qp);
            let own = mlx5dv_qp_ex_from_ibv_qp_ex(extended);
            ibv_wr_start(extended);
            (*extended).wr_id = id;
            (*extended).wr_flags = (ibv_send_flags::IBV_SEND_SIGNALED | ibv_send_flags::IBV_SEND_INLINE).0;
            mlx5dv_wr_mkey_configure(own, mkey.mkey, 2, &raw mut attr);
            mlx5dv_wr_set_mkey_access_flags(own, access.0);
            mlx5dv_wr_set_mkey_layout_list(own, layout.len() as u16, layout.as_ptr());
            ibv_wr_complete(extended)
        })
    }
}

impl Drop for Setter {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { ibv_destroy_qp(self.qp) };
    }
}

/// The key that discards what is written.
struct Null {
    mr: *mut ibv_mr,
    _device: Arc<Device>,
}

impl Null {
    fn new(device: &Arc<Device>) -> io::Result<Self> {
        // SAFETY: the domain is open.
        let mr = unsafe { ibv_alloc_null_mr(device.pd()) };
        if mr.is_null() { Err(last()) } else { Ok(Null { mr, _device: Arc::clone(device) }) }
    }

    fn lkey(&self) -> u32 {
        // SAFETY: it is alive.
        unsafe { (*self.mr).lkey }
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        // SAFETY: the keys that pointed at it are gone.
        unsafe { ibv_dereg_mr(self.mr) };
    }
}

/// Indirect keys of all slots.
pub(super) struct Indirect {
    setter: Setter,
    /// By slot, and within it by generation.
    keys: Vec<Mkey>,
    null: Null,
    generations: usize,
    /// By slot: the generation whose key has the buffer.
    current: Vec<usize>,
    /// Bytes of the largest message: each layout has as many.
    most: u32,
}

// SAFETY: libibverbs is safe to use from several threads, and only one has this.
unsafe impl Send for Indirect {}

impl Indirect {
    /// Makes keys for `slots` slots with messages of `most` bytes. At most `requests` requests are
    /// in flight.
    pub(super) fn new(
        library: &Arc<Library>,
        (device, queue): (&Arc<Device>, &Arc<Queue>),
        (slots, generations): (u32, u32),
        most: u32,
        requests: u32,
    ) -> io::Result<Self> {
        Ok(Indirect {
            setter: Setter::new(device, queue, requests)?,
            keys: (0..slots * generations).map(|_| Mkey::new(library, device)).collect::<io::Result<_>>()?,
            null: Null::new(device)?,
            generations: generations as usize,
            current: vec![0; slots as usize],
            most,
        })
    }

    /// Lays the slot's key of `generation` over `len` bytes at `address`. Returns where it stands.
    pub(super) fn bind(
        &mut self,
        id: u64,
        (slot, generation): (u32, u32),
        (mr, address, len): (Mr, u64, u64),
    ) -> io::Result<Key> {
        let layout = layout((address, len as u32, mr.lkey()), self.most, self.null.lkey());
        let generation = generation as usize;
        if let Some(current) = self.current.get_mut(slot as usize) {
            *current = generation;
        }
        self.set(id, slot, &layout)
    }

    /// Has the slot's key discard everything.
    pub(super) fn unbind(&mut self, id: u64, slot: u32) -> io::Result<()> {
        self.set(id, slot, &layout((0, 0, 0), self.most, self.null.lkey())).map(drop)
    }

    fn set(&mut self, id: u64, slot: u32, layout: &[ibv_sge]) -> io::Result<Key> {
        let generation = self.current.get(slot as usize).copied().unwrap_or_default();
        let missing = || io::Error::other("no such slot");
        let key = self.keys.get(slot as usize * self.generations + generation).ok_or_else(missing)?;
        self.setter.set(id, key, layout)?;
        // SAFETY: the key is alive.
        Ok(Key { address: 0, rkey: unsafe { (*key.mkey).rkey } })
    }
}

/// Returns the layout of a key: `len` bytes at `address`, and the NULL key up to `most`.
fn layout((address, len, lkey): (u64, u32, u32), most: u32, null: u32) -> Vec<ibv_sge> {
    let parts = [
        ibv_sge { addr: address, length: len, lkey },
        ibv_sge { addr: 0, length: most.saturating_sub(len), lkey: null },
    ];
    parts.into_iter().filter(|part| part.length > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layout always has the bytes of the largest message, so that no packet lies beyond it.
    #[test]
    fn layouts_are_as_long_as_the_largest_message() {
        let plain = |len| {
            let parts = layout((0x1000, len, 7), 4096, 9);
            parts.iter().map(|part| (part.addr, part.length, part.lkey)).collect::<Vec<_>>()
        };
        assert_eq!(plain(4096), [(0x1000, 4096, 7)]);
        assert_eq!(plain(100), [(0x1000, 100, 7), (0, 3996, 9)]);
        assert_eq!(plain(0), [(0, 4096, 9)]);
        assert!(layout((0, 1, 7), 4096, 9).len() <= ENTRIES);
    }

    /// Where libmlx5 is installed, it has all calls.
    #[test]
    fn the_library_has_the_calls_or_is_not_there() {
        // SAFETY: as in `load`.
        let is_there = unsafe { libloading::Library::new("libmlx5.so.1") }.is_ok();
        assert_eq!(Library::load().is_ok(), is_there);
    }
}
