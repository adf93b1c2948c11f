//! Between which hosts packets are carried.

use std::sync::Arc;

use ipnet::IpNet;
use roce::ip::Addressing;

use super::Gateway;
use crate::settings::is_in;
use crate::stats::LanDrop;

impl Gateway {
    /// The peer takes these prefixes for this site's, and drops what comes in another name; so such
    /// packets are not sent to it. None: it does not say. Holds until it is told anew, with each
    /// session.
    pub fn peer_takes(&mut self, prefixes: Arc<[IpNet]>) {
        self.peer_takes = prefixes;
        self.admitted = None;
    }

    /// Judges source and destination. Packets of two hosts come several in a row, and are judged
    /// once.
    pub(super) fn admit_hosts(&mut self, addressing: &Addressing) -> Result<(), LanDrop> {
        let hosts = (addressing.src, addressing.dst);
        if self.admitted == Some(hosts) {
            return Ok(());
        }
        let settings = &self.common.settings;
        if !settings.leads_to_peer(addressing.dst) {
            return Err(LanDrop::NotRemote);
        }
        if settings.is_remote(addressing.src) {
            return Err(LanDrop::SourceRemote);
        }
        if !settings.is_local(addressing.src) || !is_in(addressing.src, &self.peer_takes) {
            return Err(LanDrop::SourceNotLocal);
        }
        self.admitted = Some(hosts);
        Ok(())
    }
}
