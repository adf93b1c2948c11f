//! Another identity while control runs.

use std::sync::Arc;

use quinn::Connection;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls_pki_types::UnixTime;
use tokio::sync::watch;
use tracing::info;

use super::wire::shown_chain;
use super::{Config, StartError, role, transport};
use crate::identity::{Identity, SerialNumber, any_revoked};
use crate::schedule::Role;

/// The means of the handshakes to come.
#[derive(Debug)]
pub(super) struct Credentials {
    /// For the side that dials.
    pub(super) client: Option<quinn::ClientConfig>,
    /// For the other.
    pub(super) server: Option<quinn::ServerConfig>,
    /// This side's certificates and authority, as they were judged.
    identity: Identity,
    /// Certificates that get no session.
    revoked: Arc<[SerialNumber]>,
}

impl Credentials {
    /// Makes them for this side's role.
    pub(super) fn new(
        config: &Config,
        identity: &Identity,
        revoked: &[SerialNumber],
    ) -> Result<Self, StartError> {
        let transport = Arc::new(transport(config.dead_after)?);
        let (client, server) = match role(&config.site, &config.peer) {
            Role::Dialer => {
                let tls = QuicClientConfig::try_from(identity.client_config(&config.peer, revoked)?)?;
                let mut client = quinn::ClientConfig::new(Arc::new(tls));
                client.transport_config(transport);
                (Some(client), None)
            }
            Role::Listener => {
                let tls = QuicServerConfig::try_from(identity.server_config(&config.peer, revoked)?)?;
                let mut server = quinn::ServerConfig::with_crypto(Arc::new(tls));
                server.transport_config(transport);
                // Bulk goes to the address that was authenticated; a peer that moves dials again.
                server.migration(false);
                (None, Some(server))
            }
        };
        Ok(Self { client, server, identity: identity.clone(), revoked: revoked.into() })
    }

    /// Returns true if the certificates of both are the same.
    pub(super) fn show_the_same(&self, other: &Self) -> bool {
        self.identity.certificate() == other.identity.certificate()
    }

    /// Returns true if the peer of a connection showed a certificate that gets no session.
    pub(super) fn turn_away(&self, connection: &Connection) -> bool {
        any_revoked(&shown_chain(connection), &self.revoked)
    }
}

/// Gives a running [`Control`](super::Control) another identity.
///
/// Cheap to clone. The key that QUIC's stateless resets are made with stays that of the start.
#[derive(Clone, Debug)]
pub struct Renewal {
    pub(super) config: Arc<Config>,
    pub(super) endpoint: quinn::Endpoint,
    pub(super) newest: watch::Sender<Arc<Credentials>>,
}

impl Renewal {
    /// From the next handshake on, shows this identity, and turns the `revoked` certificates away.
    ///
    /// A session that is up goes on. If its peer showed one of the `revoked`, it is lost. The side
    /// that dials makes a session under another certificate at once, which the flows go on in if
    /// both sides let them.
    ///
    /// An identity in force stays so whatever the clock says. Without that, nothing could be
    /// revoked while the clock is wrong.
    ///
    /// # Errors
    /// See [`StartError`]. Then everything stays as it was.
    pub fn adopt(&self, identity: &Identity, revoked: &[SerialNumber]) -> Result<(), StartError> {
        let config = &self.config;
        let is_in_force = self.newest.borrow().identity.is_judged_like(identity);
        match identity.verify(&config.site, role(&config.site, &config.peer), UnixTime::now()) {
            Err(error) if error.is_of_time() && is_in_force => {}
            judged => judged?,
        }
        let credentials = Credentials::new(config, identity, revoked)?;
        if let Some(server) = &credentials.server {
            self.endpoint.set_server_config(Some(server.clone()));
        }
        self.newest.send_replace(Arc::new(credentials));
        info!(revoked = revoked.len(), "another identity from the next session on");
        Ok(())
    }
}
