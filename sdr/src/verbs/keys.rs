//! The means by which the peer reaches the buffers of receives, and late packets do not.

use std::io;
use std::sync::Arc;

use super::device::{Device, Mr, Pair, Queue, Window};
#[cfg(feature = "mlx5")]
use super::indirect::{Indirect, Library};
use super::windows::Key;
use crate::blob::{Agreed, BackEnd};

/// Binds in flight at most.
pub(super) const MOST_BINDS: usize = 64;

/// How buffers are reached, chosen when a device is opened.
pub(super) enum Means {
    /// Memory windows of type 1: each binding makes another key.
    Windows,
    /// Indirect keys, and a set of queue pairs for each generation.
    #[cfg(feature = "mlx5")]
    Indirect(Arc<Library>),
}

impl Means {
    /// Opens the device `name`.
    pub(super) fn open(&self, name: &str) -> io::Result<Arc<Device>> {
        match self {
            Means::Windows => Device::open(name),
            #[cfg(feature = "mlx5")]
            Means::Indirect(library) => library.open_device(name),
        }
    }

    /// Returns the back end that a blob names.
    pub(super) fn back_end(&self) -> BackEnd {
        match self {
            Means::Windows => BackEnd::VerbsUc,
            #[cfg(feature = "mlx5")]
            Means::Indirect(_) => BackEnd::Mlx5,
        }
    }

    /// Returns how many sets of queue pairs there are, which generations take in turn.
    pub(super) fn sets(&self) -> u32 {
        match self {
            Means::Windows => 1,
            #[cfg(feature = "mlx5")]
            Means::Indirect(_) => crate::blob::MLX5_GENERATIONS,
        }
    }
}

/// Keys of all slots.
pub(super) enum Keys {
    Windows(Vec<Window>),
    #[cfg(feature = "mlx5")]
    Indirect(Indirect),
}

impl Keys {
    /// Makes keys for `slots` slots.
    #[cfg_attr(not(feature = "mlx5"), allow(unused_variables, reason = "windows ask for less"))]
    pub(super) fn new(
        means: &Means,
        (device, queue): (&Arc<Device>, &Arc<Queue>),
        slots: u32,
        agreed: &Agreed,
    ) -> io::Result<Self> {
        match means {
            Means::Windows => {
                (0..slots).map(|_| Window::new(device)).collect::<io::Result<_>>().map(Keys::Windows)
            }
            #[cfg(feature = "mlx5")]
            Means::Indirect(library) => {
                let most = agreed.shape.max_message();
                let places = (slots, means.sets());
                let requests = MOST_BINDS as u32;
                Indirect::new(library, (device, queue), places, most, requests).map(Keys::Indirect)
            }
        }
    }

    /// Asks that the slot's key reaches `memory`. Returns where that stands once request `id` has
    /// completed.
    #[cfg_attr(not(feature = "mlx5"), allow(unused_variables, reason = "windows ask for less"))]
    pub(super) fn bind(
        &mut self,
        control: &mut Pair,
        id: u64,
        (slot, generation): (u32, u32),
        (mr, address, len): (Mr, u64, u64),
    ) -> io::Result<Key> {
        match self {
            Keys::Windows(windows) => {
                let window = windows.get_mut(slot as usize).ok_or_else(no_slot)?;
                Ok(Key { address, rkey: control.bind(id, window, (mr, address, len))? })
            }
            #[cfg(feature = "mlx5")]
            Keys::Indirect(keys) => keys.bind(id, (slot, generation), (mr, address, len)),
        }
    }

    /// Asks that the slot's key reaches nothing. `any` is memory of this side.
    pub(super) fn unbind(&mut self, control: &mut Pair, id: u64, slot: u32, any: Mr) -> io::Result<()> {
        match self {
            Keys::Windows(windows) => {
                let window = windows.get_mut(slot as usize).ok_or_else(no_slot)?;
                control.bind(id, window, (any, 0, 0)).map(drop)
            }
            #[cfg(feature = "mlx5")]
            Keys::Indirect(keys) => keys.unbind(id, slot),
        }
    }
}

fn no_slot() -> io::Error {
    io::Error::other("no such slot")
}
