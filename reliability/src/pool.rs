//! Recycled byte buffers.

/// A stack of emptied buffers: the one used last comes first, so it is likely still in cache. Keeps
/// at most `keep`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pool {
    #[serde(skip)]
    free: Vec<Vec<u8>>,
    keep: usize,
}

impl Pool {
    pub(crate) fn new(keep: usize) -> Self {
        Self { free: Vec::new(), keep }
    }

    /// Gives all that is kept back to the allocator.
    pub(crate) fn release(&mut self) {
        self.free = Vec::new();
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.free.len() < self.keep {
            buffer.clear();
            self.free.push(buffer);
        }
    }
}
