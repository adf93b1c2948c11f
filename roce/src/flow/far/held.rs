//! Responder side: the packets that a flow holds.

use super::Far;

impl<B> Far<B> {
    /// Requests that wait for the target, or for its acknowledgement.
    pub fn packets_mut(&mut self) -> impl Iterator<Item = &mut B> {
        self.window.packets_mut()
    }
}
